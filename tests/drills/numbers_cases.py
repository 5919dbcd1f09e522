"""Trainings in which one step goes wrong, and what puts a value that is not finite into it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from gpt.evaluation.loss import IGNORE
from gpt.processor import supported_processors
from gpt.training.incidents import MAX_SKIPPED
from gpt.training.trainer import Trainer

BAD_STEP = 2
VALUES = (math.nan, math.inf, -math.inf)
PLACES = ("loss", "gradient", "weight", "targets")
COMMON = ("train.eval_interval=1000", "train.sample_tokens=0", "train.keep_last=1", "train.ngrams=false")


@dataclass(frozen=True)
class Case:
    """One training in which one step goes wrong."""

    kernels: str
    dtype: str
    optimizer: str
    micro_batches: int
    quiet: bool
    mode: str
    place: str
    value: float

    @property
    def overrides(self) -> tuple[str, ...]:
        """Return the configuration; where nothing is logged, the weights are averaged."""
        return (
            *COMMON,
            *(("model.n_embd=64",) if self.kernels == "native" else ()),  # heads of 32, which the kernels cover
            *(f"run.kernels={self.kernels}", f"run.dtype={self.dtype}", f"optim.name={self.optimizer}"),
            *(f"train.grad_accum_steps={self.micro_batches}", f"train.on_nonfinite={self.mode}"),
            f"train.max_steps={BAD_STEP + MAX_SKIPPED + 3 if self.is_lasting else BAD_STEP + 3}",
            *(("train.log_interval=1000", "optim.ema_decay=0.9") if self.quiet else ("train.log_interval=1",)),
        )

    @property
    def is_lasting(self) -> bool:
        """Return whether every later step is bad too: a weight stays as it is."""
        return self.place == "weight"

    @property
    def is_hidden(self) -> bool:
        """Return whether the loss stays finite, as with scores in float16: it is found when the weights are saved."""
        return self.place == "weight" and self.dtype == "float16" and math.isinf(self.value)

    @property
    def is_an_overflow(self) -> bool:
        """Return whether it looks like a scaled float16 gradient out of range, which ends no run."""
        return self.place == "gradient" and self.dtype == "float16"


def cases(full: bool) -> Iterator[Case]:
    """Return every combination, or those of one recipe and a few beside it."""
    blocks = [("torch", "float32"), ("torch", "bfloat16"), ("torch", "float16"), ("native", "float32")]
    if supported_processors()[0].matmul_dtype == torch.bfloat16:
        blocks.append(("native", "bfloat16"))
    if not full:
        for place, mode in product(PLACES, ("stop", "skip")):
            yield Case("torch", "float32", "adamw", 3, False, mode, place, math.nan)
        yield Case("torch", "float32", "muon", 1, True, "stop", "gradient", math.inf)
        yield Case("torch", "float16", "adamw", 3, True, "skip", "loss", math.inf)
        yield Case("torch", "float16", "adamw", 1, False, "stop", "weight", math.inf)
        return
    for (kernels, dtype), optimizer, count, quiet, mode, place in product(
        blocks, ("adamw", "muon"), (1, 3), (False, True), ("stop", "skip"), PLACES
    ):
        for value in VALUES[:1] if place == "targets" else VALUES:
            yield Case(kernels, dtype, optimizer, count, quiet, mode, place, value)


class Spoiler:
    """Puts a value into one step of a training, and keeps the weights before and after that step."""

    def __init__(self, trainer: Trainer, case: Case) -> None:
        self.trainer, self.case, self.passes = trainer, case, 0
        self.step, self.before, self.after = trainer.stepper.step, [], []
        trainer.stepper.step = self._step
        trainer.model.register_forward_hook(self._change_logits)
        self.weight = next(w for name, w in trainer.model.named_parameters() if name.startswith("h.") and w.dim() == 2)
        self.weight.register_hook(self._change_gradient)

    def _step(self, number: int, rate: float, batches: list[Any]) -> Any:
        self.passes = 0
        if number == BAD_STEP:
            with torch.no_grad():
                if self.case.place == "weight":
                    self.weight[0, 0] = self.case.value
            if self.case.place == "targets":
                batches = [(inputs, torch.full_like(targets, IGNORE)) for inputs, targets in batches]
            self.before = self._state()
        try:
            return self.step(number, rate, batches)
        finally:
            if number == BAD_STEP:
                self.after = self._state()

    def _state(self) -> list[Tensor]:
        parts = self.trainer.stepper.optimizer.optimizers.values()
        moments = [value for part in parts for entry in part.state.values() for value in entry.values()]
        both = (*self.trainer.model.parameters(), *moments)
        return [(t.to_local() if isinstance(t, DTensor) else t).detach().clone() for t in both]  # its own shard

    @property
    def is_unchanged(self) -> bool:
        """Return whether weights and moments are after the bad step as they were before it."""
        pairs = zip(self.before, self.after, strict=True)
        if self.case.is_lasting:  # a NaN is no equal of itself
            return all(torch.equal(*(tensor.nan_to_num(7, 8, 9) for tensor in pair)) for pair in pairs)
        return all(torch.equal(*pair) for pair in pairs)

    def _is_now(self, place: str) -> bool:
        return self.case.place == place and self.trainer.state.step == BAD_STEP

    def _change_logits(self, module: torch.nn.Module, inputs: Any, logits: Tensor) -> Tensor:
        self.passes += module.training
        spoils = module.training and self._is_now("loss") and self.passes == 1
        return logits * self.case.value if spoils else logits

    def _change_gradient(self, gradient: Tensor) -> Tensor:
        if self._is_now("gradient") and self.passes == 1:
            gradient = gradient.clone()
            gradient[-1, -1] = self.case.value
        return gradient
