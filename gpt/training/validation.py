"""Evaluation during training: the validation loss, a sample, a picture of attention."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gpt.config import Config
from gpt.data import Dataset, Tokenizer
from gpt.device import Compute
from gpt.errors import NonFiniteError
from gpt.evaluation.loss import Batch, Evaluation
from gpt.evaluation.windows import full_batches
from gpt.model import GPT, eval_mode
from gpt.training.compiling import without_compilation

PICTURE_TOKENS = 32
"""Length of the sequence whose attention is shown."""

Evaluate = Callable[[nn.Module, Iterator[Batch], Compute, Callable[[], None]], Evaluation]
Picture = Callable[[GPT, Tokenizer, Tensor], NDArray[np.uint8]]
"""Draws the attention of a model to token ids (T,): an image, (height, width, 3)."""


class Validation:
    """Evaluates a model with its weights at the time of a call.

    Args:
        model: in training mode, which it keeps.
        dataset: its validation split is read.
        poll: called before every batch and after every token; an exception from it ends the evaluation.
        evaluate: computes the loss, as `gpt.evaluation.loss.evaluate`.
        stream: yields the characters of a sample.
        picture: draws attention; None: it is not drawn.
    """

    def __init__(
        self,
        config: Config,
        model: GPT,
        dataset: Dataset,
        compute: Compute,
        poll: Callable[[], None],
        evaluate: Evaluate,
        stream: Callable[[], Iterator[str]],
        picture: Picture | None = None,
    ) -> None:
        self._config, self._model, self._dataset, self._compute = config, model, dataset, compute
        self._poll, self._evaluate, self._stream, self._picture = poll, evaluate, stream, picture
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
            result = self._evaluate(self._model, batches, self._compute, self._poll)
        if not math.isfinite(result.loss):
            raise NonFiniteError(f"the validation loss is not finite at step {step}; nothing was saved")
        return result

    def sample(self) -> str:
        """Return a sample; empty if `train.sample_tokens` is 0."""
        if self._config.train.sample_tokens == 0:
            return ""
        pieces = []
        with without_compilation(self._model):
            for text in self._stream():
                pieces.append(text)
                self._poll()
        return "".join(pieces)

    def attention(self, step: int) -> NDArray[np.uint8] | None:
        """Return a picture of the attention to the first validation tokens; None if none is due."""
        interval = self._config.train.attention_interval
        # counted so that the last evaluation, which may come early, has one of its own
        evaluation = math.ceil(step / self._config.train.eval_interval)
        if self._picture is None or interval == 0 or evaluation % interval:
            return None
        length = min(PICTURE_TOKENS, self._config.model.block_size)
        idx = torch.from_numpy(np.asarray(self._dataset.val[:length]).astype(np.int64)).to(self._compute.device)
        with without_compilation(self._model), eval_mode(self._model):
            return self._picture(self._model, self._dataset.tokenizer, idx)
