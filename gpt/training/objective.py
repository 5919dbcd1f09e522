"""What a training step minimizes; by default the cross-entropy of the text."""

from collections.abc import Callable

from torch import Tensor, nn

from gpt.device import Compute
from gpt.evaluation.loss import summed_loss

StepBatch = tuple[Tensor, ...]
"""Inputs and targets, each (B, T) int64, on the CPU; and what else an objective reads of each position."""


Objective = Callable[[nn.Module, StepBatch, Compute], tuple[Tensor, Tensor]]
"""Runs `forward`, token ids (B, T) -> logits (B, T, V), on a batch.

Returns what to minimize and the cross-entropy of the targets, both summed over positions, in nats.
"""


def cross_entropy(forward: nn.Module, batch: StepBatch, compute: Compute) -> tuple[Tensor, Tensor]:
    """Minimize the cross-entropy of the targets; an `Objective`."""
    loss = summed_loss(forward, batch[0], batch[1], compute)
    return loss, loss.detach()
