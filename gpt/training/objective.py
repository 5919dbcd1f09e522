"""The objective: cross-entropy of the next token, multi-token prediction, distillation from teacher probabilities."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.config import Config, TrainConfig
from gpt.system.device import Compute, to_device
from gpt.system.errors import ConfigError, first_line
from gpt.training.loss import IGNORE, summed_cross_entropy

StepBatch = tuple[Tensor, ...]
"""Inputs and targets, each (B, T) int64, on the CPU; if there is a teacher, also the probabilities that it gives to
each next token, (B, T, V) float16."""
Term = Callable[[Tensor, Tensor], Tensor]


def z_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the squares of log Z, which keep logits from drifting (Chowdhery et al. 2022, 2204.02311, section 5)."""
    return (logits.float().logsumexp(-1).square() * (targets != IGNORE)).sum()


LOSS_TERMS: dict[str, Term] = {"z_loss": z_loss}
"""By name in `train.loss_terms`: a term from logits (B, T, V) and targets (B, T), summed over positions."""
LOGGED_ANYWAY = ("loss", "learning_rate", "grad_norm")
"""What a training logs under `train/`, where each term is logged too."""


@dataclass(frozen=True)
class Objective:
    """Runs `forward`, token ids (B, T) -> logits (B, T, V), on a batch.

    Attributes:
        logit_temperature: divides the logits in training only. Below 1 the model that is trained is less certain of its
            predictions than one trained at 1, by which one that reads its text several times generalizes better
            (Guo et al. 2017, 1706.04599, section 4.2, with the temperature chosen before training).
        mtp_weights: weights of the tokens after the next one, for the same logits (multi-token prediction, Gloeckle et
            al. 2024, 2404.19737, without heads of its own). They fall linearly to 0.
        mtp_steps: steps after which they are 0.
        teacher_weight: of the teacher probabilities; the text has the rest. Up to a constant that is the
            Kullback-Leibler divergence from the teacher (Hinton et al. 2015, 1503.02531, section 2).
        terms: names in `LOSS_TERMS` and weights of what is added.
    """

    logit_temperature: float = 1.0
    mtp_weights: tuple[float, ...] = ()
    mtp_steps: int = 1
    teacher_weight: float = 0.0
    terms: tuple[tuple[str, float], ...] = ()

    def mtp_scale(self, step: int) -> float | None:
        """Return the factor of `mtp_weights` in update `step`, counted from 0; None where they count no more."""
        return 1 - step / self.mtp_steps if self.mtp_weights and step < self.mtp_steps else None

    def __call__(
        self, forward: nn.Module, batch: StepBatch, compute: Compute, mtp_scale: float | Tensor | None
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the loss to backpropagate, the next-token cross-entropy, and the terms, unweighted, by name.

        All are summed over positions, the losses in nats. The logits are freed on return: kept during the
        backward pass, they would raise its peak memory.
        """
        inputs, targets, *teacher = (to_device(tensor, compute.device) for tensor in batch)  # (B, T), (B, T)
        with compute.autocast():
            logits = forward(inputs)  # (B, T, V)
        if self.logit_temperature != 1:
            logits = logits / self.logit_temperature
        loss = minimized = summed_cross_entropy(logits, targets)
        if mtp_scale is not None:
            for distance, weight in enumerate(self.mtp_weights, start=1):
                further = summed_cross_entropy(logits[:, :-distance], targets[:, distance:])
                minimized = minimized + mtp_scale * weight * further
        for teacher_probs in teacher:  # one, (B, T, V), or none
            probs = teacher_probs.flatten(0, 1).to(logits.dtype)
            distill_loss = F.cross_entropy(logits.flatten(0, 1), probs, reduction="sum")
            minimized = (1 - self.teacher_weight) * minimized + self.teacher_weight * distill_loss
        terms = {}
        for name, weight in self.terms:
            term = LOSS_TERMS[name](logits, targets)
            minimized = minimized + weight * term
            terms[name] = term.detach()
        return minimized, loss.detach(), terms


def build_objective(train: TrainConfig) -> Objective:
    """Return the objective of a configuration; multi-token prediction counts in the first two thirds of the steps."""
    mtp_steps, terms = max(1, train.max_steps * 2 // 3), tuple(train.loss_terms.items())
    return Objective(train.logit_temperature, train.mtp_weights, mtp_steps, train.teacher_weight, terms)


@torch.inference_mode(False)
@torch.enable_grad()
def check_terms(config: Config, device: torch.device) -> None:
    """Try every term of a resolved configuration on random logits.

    Raises:
        ConfigError: one is no sum over positions, which doubles with the batch. The loss is divided by the
            number of tokens: of a mean next to nothing would be left.
    """
    if not config.train.loss_terms:
        return
    assert config.model.vocab_size is not None
    length, ids = config.model.block_size, config.model.vocab_size
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, length, ids, generator=generator).to(device).requires_grad_()
    targets = torch.randint(ids, (1, length), generator=generator).to(device)
    for name in config.train.loss_terms:
        key = f"train.loss_terms: {name}"
        if name in LOGGED_ANYWAY:
            raise ConfigError(f"{key} would be logged as train/{name}, which has another meaning; rename it")
        one = _tried(key, LOSS_TERMS[name], logits, targets)
        two = _tried(key, LOSS_TERMS[name], logits.repeat(2, 1, 1), targets.repeat(2, 1))
        if not math.isclose(two, 2 * one, rel_tol=0.1):
            raise ConfigError(
                f"{key} is {one:.4g} for a batch and {two:.4g} for one twice as large; "
                "return the sum over positions, which doubles"
            )


def _tried(key: str, term: Term, logits: Tensor, targets: Tensor) -> float:
    """Return the number that a term gives; ConfigError: it gives none, or one without a gradient."""
    try:
        found = term(logits, targets)
    except Exception as error:
        raise ConfigError(f"{key} raises {type(error).__name__}: {first_line(error)}") from error
    if not isinstance(found, Tensor):
        raise ConfigError(f"{key} returns a {type(found).__name__}; return a tensor of one number")
    if found.dim() > 0:
        raise ConfigError(f"{key} returns a tensor of shape {tuple(found.shape)}; return its sum over positions")
    if not found.requires_grad:
        raise ConfigError(f"{key} has no gradient, and so no effect; compute it from the logits")
    return float(found.detach())
