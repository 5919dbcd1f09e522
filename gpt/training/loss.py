"""Cross-entropy of a batch, and its mean over a split, which is read in windows.

There are two protocols, whose losses are not comparable. `full_batches` reads a text once in order,
in blocks of `block_size`: it gives the loss to report. `sliding_batches` overlaps the windows, so
that every token has a long context.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.data.tokens import IGNORE, Tokens, release_pages
from gpt.model import eval_mode
from gpt.system.device import Compute, to_device

Batch = tuple[Tensor, Tensor]
"""Inputs and targets, each (B, T) int64, on the CPU."""


@dataclass(frozen=True)
class Evaluation:
    """The loss over a text.

    Attributes:
        loss: the mean, in nats per token.
        tokens: the number of targets that it is the mean of.
    """

    loss: float
    tokens: int

    def bits_per_char(self, chars_per_token: float) -> float:
        """Return the loss in bits per character, which is comparable between tokenizers."""
        return self.loss / math.log(2) / chars_per_token


def summed_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum `-log softmax(logits)[target]` over positions, in nats.

    Args:
        logits: (B, T, V).
        targets: (B, T) int64.
    """
    rows = logits.flatten(0, 1)  # (B T, V)
    return F.cross_entropy(rows, targets.flatten(), ignore_index=IGNORE, reduction="sum")


def summed_loss(model: nn.Module, inputs: Tensor, targets: Tensor, compute: Compute) -> Tensor:
    """Run the model on a batch, (B, T) each; return its summed cross-entropy, in nats.

    The logits are freed on return: kept during the backward pass, they would raise its peak memory.
    """
    with compute.autocast():
        logits = model(to_device(inputs, compute.device))
    return summed_cross_entropy(logits, to_device(targets, compute.device))


def never_stop() -> None:
    """Let an evaluation run to its end."""


def evaluate(
    model: nn.Module,
    batches: Iterator[Batch],
    compute: Compute,
    poll: Callable[[], None] = never_stop,
) -> Evaluation:
    """Compute the mean loss over batches, as of `full_batches`, with the model in eval mode.

    `poll` is called before every batch; an exception from it ends the evaluation.
    """
    losses, tokens = batch_losses(model, batches, compute, poll)
    # `fsum` rounds once, at the end: the sum does not depend on the order of the batches, and so
    # not on how they are distributed over processes.
    return Evaluation(math.fsum(losses) / tokens, tokens)


@torch.no_grad()
def batch_losses(
    model: nn.Module, batches: Iterator[Batch], compute: Compute, poll: Callable[[], None]
) -> tuple[list[float], int]:
    """Return the loss of each batch, summed over positions, and the number of all targets.

    See `evaluate`.
    """
    losses: list[Tensor] = []
    tokens = 0
    with eval_mode(model):
        for inputs, targets in batches:
            poll()
            losses.append(summed_loss(model, inputs, targets, compute))
            # targets are on the CPU, so that this reads nothing back
            tokens += int((targets != IGNORE).sum())
    # The losses are read back once, so that a GPU does not wait between batches.
    return torch.stack(losses).tolist(), tokens


def full_batches(tokens: Tokens, block_size: int, batch_size: int) -> Iterator[Batch]:
    """Yield the text in adjacent blocks, in order; each token but the first is predicted once."""
    return sliding_batches(tokens, block_size, batch_size, stride=block_size)


def sliding_batches(
    tokens: Tokens, block_size: int, batch_size: int, stride: int
) -> Iterator[Batch]:
    """Yield windows `stride` apart; each predicts only tokens after the end of the one before.

    The first window predicts all of its tokens.
    """
    # The last token is only a target, so that windows are cut from the inputs before it.
    num_inputs = len(tokens) - 1
    # The windows that do not reach past the end are computed together, as batches of one shape.
    num_whole = max(0, (num_inputs - block_size) // stride + 1)
    starts = range(0, num_whole * stride, stride)
    for first in range(0, num_whole, batch_size):
        yield _windows(tokens, starts[first : first + batch_size], block_size, num_scored=stride)
        release_pages(tokens)  # a long text would fill the memory while it is read
    # The last window, if inputs are left, is shorter: it ends with the text.
    last_start = num_whole * stride
    num_predicted = last_start - stride + block_size if num_whole > 0 else 0
    num_left = num_inputs - num_predicted
    if num_left > 0:
        yield _windows(tokens, [last_start], num_inputs - last_start, num_scored=num_left)


def _windows(tokens: Tokens, starts: Sequence[int], length: int, num_scored: int) -> Batch:
    """Return windows of `length` tokens, which predict only their last `num_scored` ones.

    The window at the beginning of the text predicts all of its tokens, since no earlier window
    predicts them.
    """
    positions = np.array(starts)[:, None] + np.arange(length + 1)  # (B, T + 1)
    windows: Tensor = torch.from_numpy(tokens[positions].astype(np.int64))
    inputs = windows[:, :-1]
    # A copy, since a view would share its memory with the inputs, which stay as they are.
    targets = windows[:, 1:].clone()
    for row, start in enumerate(starts):
        if start > 0:
            targets[row, : length - num_scored] = IGNORE
    return inputs, targets
