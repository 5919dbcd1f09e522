"""Values that are not finite, put everywhere they can come from: no update is made with them."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drills.frame import Break, Drill, Tally
from gpt.checkpoint import read_checkpoint
from gpt.errors import NonFiniteError
from gpt.evaluation.loss import IGNORE
from gpt.processor import supported_processors
from gpt.training.incidents import MOST_SKIPPED
from gpt.training.trainer import Trainer
from training.sessions import quick_beginnings, start_session

BAD_STEP = 2
VALUES = (math.nan, math.inf, -math.inf)
PLACES = ("loss", "gradient", "weight", "targets")
COMMON = ("train.eval_interval=1000", "train.sample_tokens=0", "train.keep_last=1", "train.ngrams=false")

BREAKS = (
    Break(
        "the check looks at the loss only",
        "gpt/training/step.py",
        "is_bad = ~(torch.isfinite(loss) & torch.isfinite(gradient_norm))",
        "is_bad = ~torch.isfinite(loss)",
    ),
    Break(
        "infinity passes",
        "gpt/training/step.py",
        "is_bad = ~(torch.isfinite(loss) & torch.isfinite(gradient_norm))",
        "is_bad = torch.isnan(loss) | torch.isnan(gradient_norm)",
    ),
    Break(
        "the update is made before the check",
        "gpt/training/step.py",
        "        if self.guard.reads_are_free:\n            self.guard.check()\n",
        "        if self.guard.reads_are_free:\n            self.optimizer.step()\n            self.guard.check()\n",
    ),
    Break(
        "skipping has no end",
        "gpt/training/step.py",
        "self._in_a_row > self.allowed_in_a_row",
        "self._in_a_row > 10**9 * (self.allowed_in_a_row > 0)",
    ),
    Break(
        "weights are saved as they are",
        "gpt/training/saving.py",
        "            _check_finite(weights, state.step)\n",
        "",
    ),
    Break("the sequences of a bad step are lost", "gpt/training/incidents.py", "windows.tolist()", "[]"),
)


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
            f"train.max_steps={BAD_STEP + MOST_SKIPPED + 3 if self.is_lasting else BAD_STEP + 3}",
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
        return [tensor.detach().clone() for tensor in (*self.trainer.model.parameters(), *moments)]

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


def attack(folder: Path, case: Case, tally: Tally) -> None:
    """Train once, and check what became of the weights, the run and its files."""
    lines: list[str] = []
    trainer = start_session(folder, *case.overrides, report=lines.append)
    spoiler, stopped = Spoiler(trainer, case), ""
    try:
        trainer.run()
    except NonFiniteError as error:
        stopped = str(error)
    run = trainer.run_folder
    file = run.incidents
    found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    equal = all(torch.equal(*pair) for pair in zip(spoiler.before, spoiler.after, strict=True))
    if case.is_lasting:  # a NaN is no equal of itself
        equal = all(
            torch.equal(*(t.nan_to_num(7, 8, 9) for t in pair))
            for pair in zip(spoiler.before, spoiler.after, strict=True)
        )
    finite = all(
        bool(torch.isfinite(tensor).all())
        for path in run.checkpoints()
        for tensor in read_checkpoint(path).model.values()
    )
    expected = [] if case.is_an_overflow else list(range(BAD_STEP, BAD_STEP + 1))
    if case.is_lasting and case.mode == "skip":
        expected = list(range(BAD_STEP, BAD_STEP + MOST_SKIPPED + 1))
    if case.is_hidden:
        expected = []
    ends = not case.is_an_overflow and (case.mode == "stop" or case.is_lasting)
    good = tally.check(equal, f"{case}: the bad step changed weights or moments")
    good &= tally.check(finite, f"{case}: a checkpoint has values that are not finite")
    good &= tally.check(bool(stopped) == ends, f"{case}: {'it went on' if ends else f'it stopped: {stopped}'}")
    steps = [incident["step"] for incident in found if incident["windows"]]
    good &= tally.check(steps == expected, f"{case}: incidents at {steps} instead of {expected}")
    named = f"step {expected[-1]}" if expected else "not finite"
    good &= tally.check(not ends or named in stopped, f"{case}: not named: {stopped}")
    count = 0 if case.is_an_overflow else len(expected)
    good &= tally.check(trainer.watch.statistics.skipped == count, f"{case}: {count} steps were not counted")
    tally.count("trainings with a NaN or infinity")
    tally.count("stopped before the update" if stopped else "went on without the step")
    tally.count("let it into the weights", not (equal and finite))


def run(folder: Path, full: bool) -> Tally:
    """Attack a training of every kind at every place."""
    names = ("trainings with a NaN or infinity", "stopped before the update", "went on without the step")
    tally = Tally(*names, "let it into the weights")
    with quick_beginnings():
        for number, case in enumerate(cases(full)):
            attack(folder / f"run{number}", case, tally)
    return tally


PROMISE = "A NaN or infinity in the loss, gradients, weights or targets stops a run before the update, or is skipped."
DRILL = Drill(PROMISE, run, BREAKS)
