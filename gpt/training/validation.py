"""Evaluation during training: the validation loss, a sample, a picture of attention."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gpt.config import Config
from gpt.data import Tokenizer
from gpt.data.dataset import Dataset
from gpt.data.tokens import Tokens
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


@dataclass(repr=False)
class Validation:
    """Evaluates a model with its weights at the time of a call.

    Attributes:
        model: in training mode, which it keeps.
        poll: called before every batch and after every token; an exception from it ends the evaluation.
        evaluate: computes the loss, as `gpt.evaluation.loss.evaluate`.
        stream: yields the characters of a sample.
    """

    config: Config
    model: GPT
    dataset: Dataset
    compute: Compute
    poll: Callable[[], None]
    evaluate: Evaluate
    stream: Callable[[], Iterator[str]]
    picture: Picture | None = None

    @property
    def tokens(self) -> Tokens:
        """The part of the validation split that `loss` reads."""
        limit = self.config.train.eval_max_tokens
        return self.dataset.val if limit is None else self.dataset.val[: limit + 1]

    def loss(self, step: int) -> Evaluation:
        """Compute the loss over `tokens`, in nats per token; NonFiniteError: it is not finite."""
        train = self.config.train
        batches = full_batches(self.tokens, self.config.model.block_size, train.eval_batch_size or train.batch_size)
        with without_compilation(self.model), self.compute.training_matmuls():
            result = self.evaluate(self.model, batches, self.compute, self.poll)
        if not math.isfinite(result.loss):
            raise NonFiniteError(f"the validation loss is not finite at step {step}; nothing was saved")
        return result

    def sample(self) -> str:
        """Return a sample; it is empty where `train.sample_tokens` is 0."""
        if self.config.train.sample_tokens == 0:
            return ""
        pieces = []
        with without_compilation(self.model):
            for text in self.stream():
                pieces.append(text)
                self.poll()
        return "".join(pieces)

    def attention(self, step: int) -> NDArray[np.uint8] | None:
        """Return a picture of the attention to the first validation tokens, if one is due."""
        interval = self.config.train.attention_interval
        # counted so that the last evaluation, which may come early, has one of its own
        evaluation = math.ceil(step / self.config.train.eval_interval)
        if self.picture is None or interval == 0 or evaluation % interval:
            return None
        length = min(PICTURE_TOKENS, self.config.model.block_size)
        idx = torch.from_numpy(np.asarray(self.dataset.val[:length]).astype(np.int64)).to(self.compute.device)
        with without_compilation(self.model), eval_mode(self.model):
            return self.picture(self.model, self.dataset.tokenizer, idx)
