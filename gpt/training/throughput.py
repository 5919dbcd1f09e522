"""Measure the throughput of a training run."""

import time
from collections.abc import Callable


class SpeedMeter:
    """Measures the throughput of a run between readings.

    Args:
        tokens_per_step: training tokens of one optimizer step.
        matmul_rate: FLOP/s of the machine, measured.
        seconds_before: wall time of the run before this process.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        tokens_per_step: int,
        matmul_rate: float,
        seconds_before: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._tokens, self._rate = tokens_per_step, matmul_rate
        self._clock = clock
        self._begin = clock() - seconds_before
        self.restart()

    @property
    def total_seconds(self) -> float:
        """Return the wall time of the whole run so far in seconds, evaluations and samples included."""
        return self._clock() - self._begin

    def restart(self) -> None:
        """Begin a new interval, so that the time since the last step, such as an evaluation, does not count."""
        self._interval, self._steps, self._flops = self._clock(), 0, 0

    def count_step(self, flops: int) -> None:
        """Count one step, with the model FLOPs of its forward and backward passes."""
        self._steps += 1
        self._flops += flops

    def read(self) -> tuple[float, float]:
        """Return training tokens per second and MFU since the last reading or restart; begin a new interval.

        MFU is the model FLOP/s as a fraction of `matmul_rate` (Chowdhery et al. 2022, 2204.02311, appendix B).
        """
        seconds = max(self._clock() - self._interval, 1e-9)
        speed = self._tokens * self._steps / seconds, self._flops / seconds / self._rate
        self.restart()
        return speed
