"""What a run looks at between its steps: the validation loss, a sample, where attention looks."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import torch

from gpt.config import Config
from gpt.data import Dataset
from gpt.device import Compute
from gpt.errors import NonFiniteError
from gpt.evaluation.loss import Evaluation, evaluate
from gpt.evaluation.windows import full_batches
from gpt.generation import DecodeOptions, EagerRuntime, TextBatch
from gpt.inspection.rendering.pictures import attention_picture, to_pixels
from gpt.inspection.views.data import attention_view
from gpt.model import GPT

PICTURE_TOKENS = 32
"""Length of the text whose attention is drawn."""


class Validation:
    """Looks at one model with the weights it has at the moment.

    Args:
        config: resolved.
        model: in training mode, and left so.
        dataset: whose validation split is read.
        compute: where and in what type.
        poll: called between pieces of work; whatever it raises ends them.
    """

    def __init__(
        self, config: Config, model: GPT, dataset: Dataset, compute: Compute, poll: Callable[[], None]
    ) -> None:
        self._config, self._model, self._dataset, self._compute = config, model, dataset, compute
        self._poll = poll
        wanted = config.train.eval_max_tokens
        self.tokens = dataset.val if wanted is None else dataset.val[: wanted + 1]
        """What `loss` reads of the validation split."""

    def loss(self, step: int) -> Evaluation:
        """Over the validation split, or as much of it as the configuration wants read.

        Raises:
            NonFiniteError: it is not finite; the message names `step`.
        """
        train = self._config.train
        batches = full_batches(self.tokens, self._config.model.block_size, train.eval_batch_size or train.batch_size)
        with self._uncompiled():
            result = evaluate(self._model, batches, self._compute, self._poll)
        if not math.isfinite(result.loss):
            raise NonFiniteError(f"the validation loss is not finite at step {step}; nothing was saved")
        return result

    def sample(self) -> str:
        """A text, by its own generator; empty where none is wanted."""
        tokens = self._config.train.sample_tokens
        if tokens == 0:
            return ""
        params = self._config.sample.model_copy(update={"max_new_tokens": tokens, "empty_prompt": "start"})
        pieces = []
        with self._uncompiled(), self._in_eval_mode():
            runtime = EagerRuntime(self._model, DecodeOptions())  # a short text earns no compilation
            for piece in TextBatch(runtime, self._dataset.tokenizer, [""], params):
                pieces.append(piece.text)
                self._poll()
        return "".join(pieces)

    def attention(self, step: int) -> np.ndarray | None:
        """Where every head looks in the first validation tokens, as pixels; None where no picture is due."""
        interval = self._config.train.attention_interval
        evaluation = math.ceil(step / self._config.train.eval_interval)  # the last one may come early
        if interval == 0 or evaluation % interval:
            return None
        length = min(PICTURE_TOKENS, self._config.model.block_size)
        idx = torch.from_numpy(self._dataset.val[:length].astype("int64")).to(self._compute.device)
        with self._uncompiled(), self._in_eval_mode():
            view = attention_view(self._model, self._dataset.tokenizer, idx)
        return to_pixels(attention_picture(view))

    def _uncompiled(self) -> AbstractContextManager[object]:
        """Blocks run as written: a few passes do not earn a compilation of their own."""
        return torch.compiler.set_stance("force_eager") if self._compute.compile else nullcontext()

    @contextmanager
    def _in_eval_mode(self) -> Iterator[None]:
        self._model.eval()
        try:
            yield
        finally:
            self._model.train()
