"""The objective: cross-entropy of the next token, multi-token prediction, distillation."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from gpt.config import TrainConfig
from gpt.data.batches import StepBatch
from gpt.data.tokens import IGNORE
from gpt.system.device import Compute, to_device
from gpt.training.loss import summed_cross_entropy

TEACHER = "teacher"
"""Name of the field with the probabilities that a teacher gives to each next token, (B, T, V)."""
Term = Callable[[Tensor, Tensor], Tensor]
"""Computes a loss term from logits (B, T, V) and targets (B, T), summed over positions."""


def z_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the sum of (log Z)^2, where Z is the denominator of the softmax.

    The softmax does not change when a number is added to all logits, so that without this term the
    logits may drift. See Chowdhery et al. 2022, 2204.02311, section 5.
    """
    log_z = logits.float().logsumexp(-1)  # (B, T)
    return (log_z.square() * (targets != IGNORE)).sum()


LOSS_TERMS: dict[str, Term] = {
    "z_loss": z_loss,
}
"""The loss terms, by their names in `train.loss_terms`."""


class Losses(NamedTuple):
    """The losses of a batch, in nats, each summed over positions.

    Attributes:
        minimized: the sum of all parts of the objective, to be backpropagated.
        cross_entropy: the cross-entropy of the next token alone, which is the loss to report;
            detached.
        terms: the loss terms by name, without their weights, detached.
    """

    minimized: Tensor
    cross_entropy: Tensor
    terms: dict[str, Tensor]


@dataclass(frozen=True)
class Objective:
    """Computes the losses of a batch, whose weighted sum a training minimizes.

    Attributes:
        logit_temperature: divides the logits in training only. A model trained below 1 is less
            certain of its predictions than one trained at 1, and generalizes better if it reads its
            text several times (Guo et al. 2017, 1706.04599, section 4.2, with the temperature
            chosen before training).
        mtp_weights: weights of the losses of the tokens after the next one, which are predicted by
            the same logits (multi-token prediction, Gloeckle et al. 2024, 2404.19737, without
            additional heads). The weights fall linearly to 0.
        mtp_steps: the step at which `mtp_weights` reach 0.
        teacher_weight: weight of the cross-entropy with the teacher's probabilities; the loss with
            the text has the weight 1 - teacher_weight. Up to a constant, the cross-entropy with the
            teacher is the Kullback-Leibler divergence from it (Hinton et al. 2015, 1503.02531,
            section 2).
        terms: further loss terms to add, by their names in `LOSS_TERMS`, with their weights.
    """

    logit_temperature: float = 1.0
    mtp_weights: tuple[float, ...] = ()
    mtp_steps: int = 1
    teacher_weight: float = 0.0
    terms: tuple[tuple[str, float], ...] = ()

    def mtp_scale(self, step: int) -> float | None:
        """Return the factor of `mtp_weights` in update `step`, counted from 0.

        None means that the factor is 0, so that the losses of later tokens need not be computed.
        """
        if not self.mtp_weights or step >= self.mtp_steps:
            return None
        return 1 - step / self.mtp_steps

    def __call__(
        self,
        forward: nn.Module,
        batch: StepBatch,
        compute: Compute,
        mtp_scale: float | Tensor | None,
    ) -> Losses:
        """Compute the losses of a batch.

        The logits are freed on return, since they would raise the peak memory of the backward pass.

        Args:
            forward: the model, token ids (B, T) -> logits (B, T, V).
            mtp_scale: the result of the method `mtp_scale` for the step.
        """
        batch = batch.map(partial(to_device, device=compute.device))
        targets = batch.targets  # (B, T)
        with compute.autocast():
            logits = forward(batch.inputs)  # (B, T, V)
        if self.logit_temperature != 1:  # a division by 1 would only copy the logits
            logits = logits / self.logit_temperature
        cross_entropy = summed_cross_entropy(logits, targets)
        minimized = cross_entropy
        if mtp_scale is not None:
            minimized = self._add_mtp(minimized, logits, targets, mtp_scale)
        if TEACHER in batch.fields:
            minimized = self._blend_with_teacher(minimized, logits, batch.fields[TEACHER])
        terms: dict[str, Tensor] = {}  # for the metrics, without their weights
        for name, weight in self.terms:
            term = LOSS_TERMS[name](logits, targets)
            minimized = minimized + weight * term
            terms[name] = term.detach()
        return Losses(minimized, cross_entropy.detach(), terms)

    def _add_mtp(
        self, minimized: Tensor, logits: Tensor, targets: Tensor, mtp_scale: float | Tensor
    ) -> Tensor:
        """Add the weighted cross-entropy of the tokens after the next one to a loss."""
        for distance, weight in enumerate(self.mtp_weights, start=1):
            # The logits at position t predict the target at position t + distance. The last
            # positions have no target that far ahead.
            later_cross_entropy = summed_cross_entropy(logits[:, :-distance], targets[:, distance:])
            minimized = minimized + mtp_scale * weight * later_cross_entropy
        return minimized

    def _blend_with_teacher(
        self, minimized: Tensor, logits: Tensor, teacher_probs: Tensor
    ) -> Tensor:
        """Average a loss with the cross-entropy with the teacher's probabilities, (B, T, V)."""
        target_probs = teacher_probs.flatten(0, 1).to(logits.dtype)  # (B T, V)
        distill_loss = F.cross_entropy(logits.flatten(0, 1), target_probs, reduction="sum")
        return (1 - self.teacher_weight) * minimized + self.teacher_weight * distill_loss


def build_objective(train: TrainConfig) -> Objective:
    """Return the objective of a configuration.

    Multi-token prediction has a weight in the first two thirds of the steps, since it helps early.
    In the last third the model learns only to predict the next token, which it is used for.
    """
    mtp_steps = train.max_steps * 2 // 3
    return Objective(
        logit_temperature=train.logit_temperature,
        mtp_weights=train.mtp_weights,
        # `max` gives a run of a single step multi-token prediction too.
        mtp_steps=max(1, mtp_steps),
        teacher_weight=train.teacher_weight,
        terms=tuple(train.loss_terms.items()),
    )
