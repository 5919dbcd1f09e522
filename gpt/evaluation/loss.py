"""Cross-entropy of a batch, and its mean over a split."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.device import Compute
from gpt.distributed import World
from gpt.model import eval_mode

IGNORE = -100
"""Targets with this value are excluded from the loss and from its mean."""

Batch = tuple[Tensor, Tensor]
"""Inputs and targets, each (B, T) int64, on the CPU."""


@dataclass(frozen=True)
class Evaluation:
    """The loss over a text.

    Attributes:
        loss: mean, in nats per token.
        tokens: number of predicted tokens.
    """

    loss: float
    tokens: int

    def bits_per_char(self, chars_per_token: float) -> float:
        """Return the loss in bits per character of text."""
        return self.loss / math.log(2) / chars_per_token


def to_device(ids: Tensor, device: torch.device) -> Tensor:
    """Move token ids (B, T); from the CPU to a CUDA device through pinned memory, so that the copy is asynchronous."""
    pinned = device.type == "cuda" and ids.device.type == "cpu"
    return (ids.contiguous().pin_memory() if pinned else ids).to(device, non_blocking=pinned)


def summed_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum `-log softmax(logits)[target]` over positions, in nats.

    Args:
        logits: (B, T, V).
        targets: (B, T) int64; `IGNORE` on padding.
    """
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="sum")


def summed_loss(model: nn.Module, inputs: Tensor, targets: Tensor, compute: Compute) -> Tensor:
    """Return the cross-entropy of a batch, summed over positions, in nats; runs the model.

    The logits are freed on return: kept during the backward pass, they would raise its peak memory.

    Args:
        model: token ids (B, T) -> logits (B, T, V).
        inputs: (B, T).
        targets: (B, T); `IGNORE` on padding.
        compute: device and dtype.
    """
    with compute.autocast():
        logits = model(to_device(inputs, compute.device))
    return summed_cross_entropy(logits, to_device(targets, compute.device))


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterator[Batch],
    compute: Compute,
    poll: Callable[[], None] = lambda: None,
    world: World = World(),  # noqa: B008  # without state
) -> Evaluation:
    """Compute the mean loss over some batches; the model is in eval mode meanwhile.

    Processes take turns: each computes whole batches, so that their number does not change the result.

    Args:
        model: token ids (B, T) -> logits (B, T, V).
        batches: inputs and targets, see `gpt.evaluation.windows`.
        compute: device and dtype.
        poll: called before every batch; an exception from it ends the evaluation.
        world: the processes, each with the same model and batches.
    """
    sums, count = [], 0
    with eval_mode(model):
        while turn := list(islice(batches, world.size)):
            poll()
            inputs, targets = turn[min(world.rank, len(turn) - 1)]  # the forward pass may need all processes
            value = summed_loss(model, inputs, targets, compute)
            sums.append(value if world.rank < len(turn) else torch.zeros_like(value))
            count += sum(int((targets != IGNORE).sum()) for _, targets in turn)
    values = torch.stack(sums).tolist()  # read back once, so that a GPU does not wait between batches
    total = math.fsum(value for values in world.gather(values) for value in values)
    return Evaluation(total / count, count)
