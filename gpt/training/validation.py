"""Evaluation during training: the validation loss, a sample, an image of attention."""

import math
from collections.abc import Callable

import numpy as np
import torch

from gpt.config import Config
from gpt.data import Dataset
from gpt.device import Compute
from gpt.distributed import World
from gpt.errors import NonFiniteError
from gpt.evaluation.loss import Evaluation, evaluate
from gpt.evaluation.windows import full_batches
from gpt.generation import DecodeOptions, EagerRuntime, TextBatch
from gpt.inspection.rendering.pictures import attention_picture, to_pixels
from gpt.inspection.views.attention import attention_view
from gpt.model import GPT, eval_mode
from gpt.training.compiling import without_compilation

PICTURE_TOKENS = 32
"""Length of the sequence whose attention is shown."""


class Validation:
    """Evaluates a model with its weights at the time of a call.

    Args:
        config: resolved.
        model: in training mode, which it keeps.
        dataset: its validation split is read.
        compute: device and dtype.
        poll: called before every batch and after every token; an exception from it ends the evaluation.
        world: the processes, which evaluate at the same time.
    """

    def __init__(
        self, config: Config, model: GPT, dataset: Dataset, compute: Compute, poll: Callable[[], None], world: World
    ) -> None:
        self._config, self._model, self._dataset, self._compute = config, model, dataset, compute
        self._poll, self._world = poll, world
        limit = config.train.eval_max_tokens
        self.tokens = dataset.val if limit is None else dataset.val[: limit + 1]
        """The part of the validation split that `loss` reads."""

    def loss(self, step: int) -> Evaluation:
        """Compute the loss over `tokens`, in nats per token.

        Raises:
            NonFiniteError: the loss is not finite; the message names `step`.
        """
        train = self._config.train
        batches = full_batches(self.tokens, self._config.model.block_size, train.eval_batch_size or train.batch_size)
        with without_compilation(self._model), self._compute.training_matmuls():
            result = evaluate(self._model, batches, self._compute, self._poll, self._world)
        if not math.isfinite(result.loss):
            raise NonFiniteError(f"the validation loss is not finite at step {step}; nothing was saved")
        return result

    def sample(self) -> str:
        """Return a sample, generated with its own random generator; empty if `train.sample_tokens` is 0."""
        tokens = self._config.train.sample_tokens
        if tokens == 0:
            return ""
        params = self._config.sample.model_copy(update={"max_new_tokens": tokens, "empty_prompt": "start"})
        pieces = []
        with without_compilation(self._model):
            runtime = EagerRuntime(self._model, DecodeOptions())  # a short sample is not worth compiling for
            for piece in TextBatch(runtime, self._dataset.tokenizer, [""], params):
                pieces.append(piece.text)
                self._poll()
        return "".join(pieces)

    def attention(self, step: int) -> np.ndarray | None:
        """Return an image of the attention to the first validation tokens, (height, width, 3); None if none is due."""
        interval = self._config.train.attention_interval
        evaluation = math.ceil(step / self._config.train.eval_interval)  # the last one may come early
        if interval == 0 or evaluation % interval:
            return None
        length = min(PICTURE_TOKENS, self._config.model.block_size)
        idx = torch.from_numpy(np.asarray(self._dataset.val[:length]).astype(np.int64)).to(self._compute.device)
        with without_compilation(self._model), eval_mode(self._model):
            view = attention_view(self._model, self._dataset.tokenizer, idx)
        return to_pixels(attention_picture(view))
