"""Loss of a model on held-out tokens, by three protocols that must not be mixed.

`full` reads the split once in order, in blocks of `block_size`: the figure to quote. `sliding`
gives every token the longest context there is. `random` is nanoGPT's estimate: batches of random
crops, noisy.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from gpt.data.batches import BatchSampler, release_pages
from gpt.data.dataset import Tokens
from gpt.device import Compute
from gpt.training.loss import IGNORE, Batch, summed_cross_entropy, to_device


@dataclass(frozen=True)
class Evaluation:
    """A result.

    Attributes:
        loss: mean over `tokens`, in nats per token.
        tokens: predictions it is the mean of.
    """

    loss: float
    tokens: int

    def bits_per_char(self, chars_per_token: float) -> float:
        """The loss in bits per character of text."""
        return self.loss / math.log(2) / chars_per_token


def full_batches(tokens: Tokens, block_size: int, batch_size: int) -> Iterator[Batch]:
    """The whole split in order, each token but the first predicted once, in blocks side by side."""
    return sliding_batches(tokens, block_size, batch_size, stride=block_size)


def sliding_batches(tokens: Tokens, block_size: int, batch_size: int, stride: int) -> Iterator[Batch]:
    """Windows `stride` apart; each predicts only the tokens that the one before did not reach."""
    last = len(tokens) - 1  # the last token is only a target
    starts = range(0, max(1, last - block_size + stride), stride)
    whole = max(0, (last - block_size) // stride + 1)  # windows that do not reach past the end
    for i in range(0, whole, batch_size):
        yield _windows(tokens, starts[i : min(i + batch_size, whole)], block_size, stride)
        release_pages(tokens)
    for start in starts[whole:]:
        yield _windows(tokens, [start], last - start, stride - (start + block_size - last))


def random_batches(tokens: Tokens, block_size: int, batch_size: int, batches: int, seed: int) -> Iterator[Batch]:
    """nanoGPT's protocol: random crops, from a generator of their own."""
    sampler = BatchSampler(tokens, block_size, seed)
    for _ in range(batches):
        yield sampler.get_batch(batch_size)


@torch.no_grad()
def evaluate(
    model: nn.Module, batches: Iterator[Batch], compute: Compute, poll: Callable[[], None] = lambda: None
) -> Evaluation:
    """Mean loss over some batches; the model is in eval mode meanwhile.

    Args:
        model: token ids (B, T) -> logits (B, T, V).
        batches: on the CPU.
        compute: where and in what type to compute.
        poll: called before every batch; whatever it raises ends the evaluation.
    """
    was_training = model.training
    model.eval()
    try:
        sums, count = [], 0
        for inputs, targets in batches:
            poll()
            with compute.autocast():
                logits = model(to_device(inputs, compute.device))
            sums.append(summed_cross_entropy(logits, to_device(targets, compute.device)))
            count += int((targets != IGNORE).sum())
    finally:
        model.train(was_training)
    total = math.fsum(torch.stack(sums).tolist())  # read at the end: a device is not waited for between batches
    return Evaluation(total / count, count)


def _windows(tokens: Tokens, starts: Sequence[int], length: int, fresh: int) -> Batch:
    """Windows of `length`, of which all but the first start only predict their last `fresh` tokens."""
    indices = np.array(starts)[:, None] + np.arange(length + 1)
    windows: Tensor = torch.from_numpy(tokens[indices].astype(np.int64))
    targets = windows[:, 1:].clone()
    for row, start in enumerate(starts):
        if start > 0:
            targets[row, : length - fresh] = IGNORE
    return windows[:, :-1], targets
