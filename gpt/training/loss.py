"""The training objective."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORE = -100
"""Targets with this value count neither in the loss nor in its mean."""

Batch = tuple[Tensor, Tensor]
"""Inputs and targets, each (B, T)."""


def to_device(ids: Tensor, device: torch.device) -> Tensor:
    """Token ids (B, T) of the CPU, moved; to a CUDA device from pinned memory, so that nobody waits for the copy."""
    if device.type == "cuda":
        ids = ids.contiguous().pin_memory()
    return ids.to(device, non_blocking=device.type == "cuda")


def summed_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum over positions of `-log softmax(logits)[target]`, in nats.

    Args:
        logits: (B, T, V).
        targets: (B, T) int64; `IGNORE` on padding.
    """
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="sum")


def accumulate_gradients(
    micro_batches: Sequence[Batch],
    summed_loss: Callable[[Tensor, Tensor], Tensor],
    backward: Callable[[Tensor], None],
) -> Tensor:
    """Add up the gradients of several micro-batches as if they were one batch.

    Each loss is divided by the tokens of the whole step, not of its micro-batch, so that a smaller
    last one, or one with padding, weighs what its tokens weigh.

    Args:
        micro_batches: on the CPU.
        summed_loss: inputs and targets -> loss summed over the targets, in nats.
        backward: takes each scaled loss.

    Returns:
        Mean loss per token, in nats, detached.
    """
    tokens = sum(int((targets != IGNORE).sum()) for _, targets in micro_batches)
    losses = []
    for inputs, targets in micro_batches:
        loss = summed_loss(inputs, targets) / tokens
        backward(loss)
        losses.append(loss.detach())
    return torch.stack(losses).sum()
