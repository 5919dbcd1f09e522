"""What a training step minimizes: the cross-entropy of the text, or its mixture with that of a teacher."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch.nn.functional as F
from torch import Tensor, nn

from gpt.device import Compute
from gpt.evaluation.loss import Batch, summed_cross_entropy, summed_loss, to_device


class TaughtBatch(NamedTuple):
    """A batch with the probabilities that a teacher gives to each next token.

    Attributes:
        inputs: (B, T) int64.
        targets: (B, T) int64.
        probabilities: (B, T, V) float16.
    """

    inputs: Tensor
    targets: Tensor
    probabilities: Tensor


class Objective(Protocol):
    """Runs the model on a batch, and says what to minimize."""

    def __call__(self, forward: nn.Module, batch: Batch | TaughtBatch, compute: Compute) -> tuple[Tensor, Tensor]:
        """Return what to minimize and the cross-entropy of the targets, both summed over positions, in nats.

        Args:
            forward: token ids (B, T) -> logits (B, T, V).
            batch: on the CPU.
            compute: device and dtype.
        """
        ...


def cross_entropy(forward: nn.Module, batch: Batch | TaughtBatch, compute: Compute) -> tuple[Tensor, Tensor]:
    """Minimize the cross-entropy of the targets; an `Objective`."""
    loss = summed_loss(forward, batch[0], batch[1], compute)
    return loss, loss.detach()


@dataclass(frozen=True)
class Distillation:
    """An `Objective`: cross-entropy with a mixture of the targets and of a teacher's probabilities.

    Up to a constant this is `(1 - weight)` times the cross-entropy of the targets plus `weight` times the
    Kullback-Leibler divergence from the teacher (Hinton et al. 2015, 1503.02531, section 2, at temperature 1).

    Attributes:
        weight: of the teacher.
    """

    weight: float

    def __call__(self, forward: nn.Module, batch: Batch | TaughtBatch, compute: Compute) -> tuple[Tensor, Tensor]:
        """Return the mixture and the cross-entropy of the targets alone, see `Objective`."""
        assert isinstance(batch, TaughtBatch)
        with compute.autocast():
            logits = forward(to_device(batch.inputs, compute.device))
        hard = summed_cross_entropy(logits, to_device(batch.targets, compute.device))
        taught = to_device(batch.probabilities, compute.device).flatten(0, 1).to(logits.dtype)
        soft = F.cross_entropy(logits.flatten(0, 1), taught, reduction="sum")
        return (1 - self.weight) * hard + self.weight * soft, hard.detach()
