"""Throughput of a run."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Speed:
    """The throughput over an interval of steps.

    Attributes:
        tokens_per_second: training tokens.
        mfu: model FLOPs per second as a share of the measured rate of matmuls
            (Chowdhery et al. 2022, 2204.02311, appendix B).
    """

    tokens_per_second: float
    mfu: float


class SpeedMeter:
    """Counts steps between readings.

    Args:
        tokens_per_step: training tokens of one optimizer step.
        flops_per_step: model FLOPs of its forward and backward passes.
        matmul_rate: FLOP/s of the machine, measured.
        seconds_before: wall time of the run before this process.
        clock: seconds.
    """

    def __init__(
        self,
        tokens_per_step: int,
        flops_per_step: int,
        matmul_rate: float,
        seconds_before: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._tokens, self._flops, self._rate = tokens_per_step, flops_per_step, matmul_rate
        self._clock = clock
        self._begin = clock() - seconds_before
        self.restart()

    @property
    def total_seconds(self) -> float:
        """Return the wall time of the whole run so far in seconds, evaluations and samples included."""
        return self._clock() - self._begin

    def restart(self) -> None:
        """Begin a new interval, so that what was done since the last step does not count in it."""
        self._interval, self._steps = self._clock(), 0

    def count_step(self) -> None:
        """Count one step as done."""
        self._steps += 1

    def read(self) -> Speed:
        """Return the speed since the last reading or restart, and begin a new interval."""
        per_second = self._steps / max(self._clock() - self._interval, 1e-9)
        self.restart()
        return Speed(self._tokens * per_second, self._flops * per_second / self._rate)
