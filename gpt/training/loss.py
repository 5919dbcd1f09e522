"""Cross-entropy of a batch, and its mean over a split, which is read in windows.

By two protocols, whose losses are not comparable: `full_batches` reads a text once in order, in blocks of `block_size`:
the loss to report. `sliding_batches` overlaps the windows, so that every token has a long context.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.data.tokens import Tokens, release_pages
from gpt.model import eval_mode
from gpt.system.device import Compute, to_device

IGNORE = -100
"""Targets with this value, as padding, are excluded from the loss and from its mean."""

Batch = tuple[Tensor, Tensor]
"""Inputs and targets, each (B, T) int64, on the CPU."""


@dataclass(frozen=True)
class Evaluation:
    """The mean loss over a text, in nats per token."""

    loss: float
    tokens: int

    def bits_per_char(self, chars_per_token: float) -> float:
        return self.loss / math.log(2) / chars_per_token


def summed_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum `-log softmax(logits)[target]` over positions, in nats: logits (B, T, V), targets (B, T) int64."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="sum")


def summed_loss(model: nn.Module, inputs: Tensor, targets: Tensor, compute: Compute) -> Tensor:
    """Return the cross-entropy of a batch, (B, T) each, summed over positions, in nats; runs the model.

    The logits are freed on return: kept during the backward pass, they would raise its peak memory.
    """
    with compute.autocast():
        logits = model(to_device(inputs, compute.device))
    return summed_cross_entropy(logits, to_device(targets, compute.device))


def evaluate(
    model: nn.Module, batches: Iterator[Batch], compute: Compute, poll: Callable[[], None] = lambda: None
) -> Evaluation:
    """Compute the mean loss over batches, as of `full_batches`; the model is in eval mode meanwhile.

    `poll` is called before every batch; an exception from it ends the evaluation.
    """
    losses, tokens = batch_losses(model, batches, compute, poll)
    return Evaluation(math.fsum(losses) / tokens, tokens)


@torch.no_grad()
def batch_losses(
    model: nn.Module, batches: Iterator[Batch], compute: Compute, poll: Callable[[], None]
) -> tuple[list[float], int]:
    """Return the loss of each batch, summed over positions, and the number of targets in all; see `evaluate`."""
    losses, tokens = [], 0
    with eval_mode(model):
        for inputs, targets in batches:
            poll()
            losses.append(summed_loss(model, inputs, targets, compute))
            tokens += int((targets != IGNORE).sum())
    # read back once, so that a GPU does not wait between batches
    return torch.stack(losses).tolist(), tokens


def full_batches(tokens: Tokens, block_size: int, batch_size: int) -> Iterator[Batch]:
    """Yield the text in adjacent blocks, in order; each token but the first is predicted once."""
    return sliding_batches(tokens, block_size, batch_size, stride=block_size)


def sliding_batches(tokens: Tokens, block_size: int, batch_size: int, stride: int) -> Iterator[Batch]:
    """Yield windows `stride` apart; each predicts only the tokens after the end of the previous one."""
    # the last token is only a target
    last = len(tokens) - 1
    starts = range(0, max(1, last - block_size + stride), stride)
    # the windows that do not reach past the end are computed together, as batches of one shape
    whole = max(0, (last - block_size) // stride + 1)
    for i in range(0, whole, batch_size):
        yield _windows(tokens, starts[i : min(i + batch_size, whole)], block_size, stride)
        release_pages(tokens)
    for start in starts[whole:]:
        yield _windows(tokens, [start], last - start, stride - (start + block_size - last))


def _windows(tokens: Tokens, starts: Sequence[int], length: int, scored: int) -> Batch:
    """Return windows of `length`; all but the first one of the text predict only their last `scored` tokens."""
    indices = np.array(starts)[:, None] + np.arange(length + 1)
    windows: Tensor = torch.from_numpy(tokens[indices].astype(np.int64))
    targets = windows[:, 1:].clone()
    for index, start in enumerate(starts):
        if start > 0:
            targets[index, : length - scored] = IGNORE
    return windows[:, :-1], targets
