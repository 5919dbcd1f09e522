"""Cross-entropy of a batch, and its mean over a split."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
    """Compute the mean loss over batches, see `gpt.training.windows`; the model is in eval mode meanwhile.

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
