"""Measure the throughput of a training run."""

import time
from collections.abc import Callable


class SpeedMeter:
    """Measures the throughput of a run between readings.

    Args:
        tokens_per_step: training tokens of one optimizer step.
        flops_per_step: model FLOPs of its forward and backward passes.
        matmul_rate: measures the machine's FLOP/s.
        peak_memory: measures the peak memory of this process in bytes.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        tokens_per_step: int,
        flops_per_step: int,
        matmul_rate: Callable[[], float],
        peak_memory: Callable[[], int],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._tokens, self._flops = tokens_per_step, flops_per_step
        self._matmul_rate, self._peak_memory, self._clock = matmul_rate, peak_memory, clock

    def start(self, seconds_before: float) -> None:
        """Begin to measure, after so many seconds of the run in earlier processes."""
        self._rate = self._matmul_rate()
        self._begin = self._clock() - seconds_before
        self.restart()

    @property
    def total_seconds(self) -> float:
        """Return the wall time of the whole run so far in seconds, evaluations and samples included."""
        return self._clock() - self._begin

    def restart(self) -> None:
        """Begin a new interval, so that the time since the last step, such as an evaluation, does not count."""
        self._interval, self._steps = self._clock(), 0

    def count_step(self) -> None:
        """Count one step."""
        self._steps += 1

    def read(self) -> dict[str, float]:
        """Return the metrics since the last reading or restart, by name, and begin a new interval.

        MFU is the model FLOP/s as a fraction of the machine's (Chowdhery et al. 2022, 2204.02311, appendix B).
        """
        per_second = self._steps / max(self._clock() - self._interval, 1e-9)
        self.restart()
        return {
            "speed/tokens_per_second": self._tokens * per_second,
            "speed/mfu": self._flops * per_second / self._rate,
            "speed/memory_bytes": self._peak_memory(),
            "speed/seconds": self.total_seconds,
        }
