"""Steps to look at: those whose loss is far above that of the steps before, and those that were not finite."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import torch
from pydantic import Field, TypeAdapter
from torch import Tensor

from gpt.training.training_state import Count

MEMORY = 50
"""Steps over which the running mean and deviation are taken; no spike is reported before so many."""

SMALLEST_DEVIATION = 0.01
"""Least standard deviation, as a fraction of the mean: where the loss hardly varies, no small step is a spike."""

MAX_SKIPPED = 10
"""Steps in a row that are skipped because they are not finite before training ends."""

MAX_PENDING = 100
"""Steps after which results are read back from the device even if no log line is due."""


@dataclass(frozen=True)
class LossAnomaly:
    """A step to look at.

    Attributes:
        step: counted from 0.
        kind: `spike`, or `nonfinite` where no update was made.
        loss: before the update, in nats per token; None if that is not finite or unknown.
        gradient_norm: before clipping; None likewise.
        mean: of the losses before it, with their standard deviation.
        windows: position in the training split of the first token of each sequence.
    """

    step: int
    kind: str
    loss: float | None
    gradient_norm: float | None
    mean: float
    deviation: float
    windows: list[int]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        if self.kind == "nonfinite":
            return f"the loss or a gradient is not finite at step {self.step}"
        height = (self.loss - self.mean) / self.deviation if self.loss is not None else math.inf
        return (
            f"loss {self.loss:.4f} at step {self.step} is {height:.1f} standard deviations above "
            f"the mean {self.mean:.4f} of the steps before"
        )


@dataclass
class LossStatistics:
    """Exponential moving averages of the losses, in nats per token, and how many incidents there were."""

    count: Count = 0
    mean: Annotated[float, Field(strict=True, allow_inf_nan=False)] = 0.0
    variance: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = 0.0
    spikes: Count = 0
    skipped: Count = 0

    @property
    def deviation(self) -> float:
        """The standard deviation, which is not less than a hundredth of the mean."""
        return max(math.sqrt(self.variance), SMALLEST_DEVIATION * abs(self.mean), 1e-12)

    def add(self, loss: float) -> None:
        self.count += 1
        share = max(1 / self.count, 1 / MEMORY)
        distance = loss - self.mean
        self.mean += share * distance
        self.variance = (1 - share) * (self.variance + share * distance * distance)


class LossMonitor:
    """Finds incidents among the steps, with results that stay on the device until `read`.

    Args:
        spike_deviations: a loss so many standard deviations above the mean is a spike; None: none is.
    """

    def __init__(self, spike_deviations: float | None) -> None:
        self._threshold = spike_deviations
        self._pending: list[tuple[int, Tensor, list[Tensor]]] = []
        self.statistics = LossStatistics()

    @property
    def is_full(self) -> bool:
        return len(self._pending) >= MAX_PENDING

    @property
    def counters(self) -> dict[str, int]:
        """How many spikes and skipped steps there were, as metrics; empty if there were none."""
        counts = {"train/loss_spikes": self.statistics.spikes, "train/skipped_steps": self.statistics.skipped}
        return counts if any(counts.values()) else {}

    def begin(self, step: int, windows: Tensor) -> None:
        """Record the positions of the windows of a step that is about to be made."""
        self._pending.append((step, windows, []))

    def observe(self, loss: Tensor, gradient_norm: Tensor, is_bad: Tensor) -> None:
        """Record the result of the step that was begun; `is_bad` where it was not finite and no update was made."""
        self._pending[-1][2].append(torch.stack([loss.double(), gradient_norm.double(), is_bad.double()]))

    def read(self) -> list[LossAnomaly]:
        """Return the incidents among the steps since the last call; a step without a result was not finite."""
        pending, self._pending = self._pending, []
        results = [result for _, _, found in pending for result in found]
        values = iter(torch.stack(results).tolist() if results else [])
        found = [self._judge(step, windows, next(values) if done else None) for step, windows, done in pending]
        return [incident for incident in found if incident is not None]

    def _judge(self, step: int, windows: Tensor, result: Sequence[float] | None) -> LossAnomaly | None:
        loss, norm, is_bad = (math.nan, math.nan, 1.0) if result is None else result
        statistics, mean, deviation = self.statistics, self.statistics.mean, self.statistics.deviation
        limit = math.inf
        if self._threshold is not None and statistics.count >= MEMORY:
            limit = mean + self._threshold * deviation
        if is_bad:
            statistics.skipped += 1
        else:
            statistics.spikes += loss > limit
            # spikes are clipped at the limit, so that one does not mask the next, and a new level becomes normal
            statistics.add(min(loss, limit))
            if loss <= limit:
                return None
        kind = "nonfinite" if is_bad else "spike"
        known_loss, known_norm = (value if math.isfinite(value) else None for value in (loss, norm))
        return LossAnomaly(step, kind, known_loss, known_norm, mean, deviation, windows.tolist())

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics; call `read` before."""
        return asdict(self.statistics)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with saved statistics; ValueError: they are none."""
        self.statistics = TypeAdapter(LossStatistics).validate_python(state)
