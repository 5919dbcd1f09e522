"""Measure the throughput of a training run."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class SpeedMeter:
    """Measures the throughput of a run between readings.

    Attributes:
        flops_per_step: of the model's forward and backward passes, for sequences of a length.
        matmul_rate: measures the machine's FLOP/s.
        peak_memory: measures that of this process, in bytes.
    """

    tokens_per_step: int
    flops_per_step: Callable[[int], int]
    matmul_rate: Callable[[], float]
    peak_memory: Callable[[], int]
    clock: Callable[[], float] = time.perf_counter

    def start(self, seconds_before: float) -> None:
        """Begin to measure, after so many seconds of the run in earlier processes."""
        self._rate = self.matmul_rate()
        self._begin = self.clock() - seconds_before
        self.restart()

    @property
    def total_seconds(self) -> float:
        """Wall time of the whole run so far, evaluations and samples included."""
        return self.clock() - self._begin

    def restart(self) -> None:
        """Begin a new interval, so that the time since the last step, such as an evaluation, does not count."""
        self._interval, self._steps, self._flops = self.clock(), 0, 0

    def count_step(self, length: int) -> None:
        """Count a step whose sequences have so many tokens."""
        self._steps += 1
        self._flops += self.flops_per_step(length)

    def read(self) -> dict[str, float]:
        """Return the metrics since the last reading or restart, by name, and begin a new interval.

        MFU is the model FLOP/s as a fraction of the machine's (Chowdhery et al. 2022, 2204.02311, appendix B).
        """
        seconds = max(self.clock() - self._interval, 1e-9)
        tokens, flops = self._steps * self.tokens_per_step, self._flops
        self.restart()
        return {
            "speed/tokens_per_second": tokens / seconds,
            "speed/mfu": flops / seconds / self._rate,
            "speed/memory_bytes": self.peak_memory(),
            "speed/seconds": self.total_seconds,
        }
