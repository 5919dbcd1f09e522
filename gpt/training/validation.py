"""Evaluation during training: the validation loss and a sample."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from torch import nn

from gpt.config import Config
from gpt.data.dataset import Dataset
from gpt.data.item_batches import item_batches
from gpt.data.items import item_spans, questions_of
from gpt.data.tokens import Tokens
from gpt.generation.reference import reference_texts
from gpt.model import GPT
from gpt.system.device import Compute
from gpt.system.errors import NonFiniteError
from gpt.training.acceleration import without_compilation
from gpt.training.loss import Batch, Evaluation, full_batches

Poll = Callable[[], None]
"""Called before every batch and after every token; an error that it raises ends an evaluation."""
Evaluate = Callable[[nn.Module, Iterator[Batch], Compute, Poll], Evaluation]
"""Computes the mean loss of a model over batches, in one process or shared among several."""


@dataclass(repr=False)
class Validation:
    """Evaluates a model with its weights at the time of a call.

    Attributes:
        model: the model in training mode.
        evaluate: computes the loss, as `gpt.training.loss.evaluate` does.
    """

    config: Config
    model: GPT
    dataset: Dataset
    compute: Compute
    evaluate: Evaluate

    @property
    def tokens(self) -> Tokens:
        """The part of the validation split that `loss` reads."""
        tokens = self.dataset.val
        limit = self.config.train.eval_max_tokens
        if limit is None:
            return tokens
        if self.dataset.items is None:
            return tokens[: limit + 1]  # one more, since the first token is not predicted
        # Items are read whole: the last one is the first that ends at the limit or after it, or the
        # last of the split if the split is shorter.
        ends = item_spans(tokens, self.dataset.items.end)[:, 1]  # where each item ends, (N,)
        last_item = int(np.searchsorted(ends, min(limit, ends[-1])))
        return tokens[: ends[last_item]]

    def loss(self, step: int, poll: Poll) -> Evaluation:
        """Compute the loss over `tokens`, in nats per token.

        Raises:
            NonFiniteError: the loss is not finite, so that it cannot be compared with others.
        """
        train = self.config.train
        block_size = self.config.model.block_size
        items = self.dataset.items
        if items is None:
            batches = full_batches(self.tokens, block_size, train.batch_size)
        else:
            batches = item_batches(self.tokens, block_size, train.batch_size, items)
        # The last batches have other shapes, for which torch would compile the blocks again. TF32
        # is allowed as in training, so that the losses of both can be compared.
        with without_compilation(self.model), self.compute.allow_tf32():
            result = self.evaluate(self.model, batches, self.compute, poll)
        if not math.isfinite(result.loss):
            raise NonFiniteError(
                f"the validation loss is not finite at step {step}; it is not recorded"
            )
        return result

    def sample(self, poll: Poll) -> str:
        """Return a sample, which is empty if `train.sample_tokens` is 0.

        A model that was trained on questions and answers is given the first question of the
        validation split; the sample then has this question and the model's answer.
        """
        length = self.config.train.sample_tokens
        params = self.config.sample.params(max_new_tokens=length)
        tokenizer = self.dataset.tokenizer
        prompt: list[int] | None = None  # without a prompt the model begins a new text
        question = ""
        if self.dataset.has_answers and length > 0:
            prompt = first_question(self.dataset, self.config.model.block_size)
            # The prompt has a mark before and after the question, which are not shown.
            question = tokenizer.decode(prompt[1:-1]) + "\n"
        with without_compilation(self.model):
            texts = reference_texts(self.model, tokenizer, params, [params.seed], poll, prompt)
        return question + texts[0]


def first_question(dataset: Dataset, block_size: int) -> list[int]:
    """Return the ids of the first question of a validation split, with the marks around it."""
    assert dataset.items is not None
    return next(questions_of(dataset.val, dataset.items, block_size)).ids
