"""Measure the throughput of a training run."""

import time
from collections.abc import Callable

from gpt.accounting.flops import training_flops
from gpt.config import Config


class SpeedMeter:
    """Measures the throughput of a run between readings.

    Args:
        tokens_per_step: training tokens of one optimizer step.
        flops_per_step: model FLOPs of its forward and backward passes.
        matmul_rate: FLOP/s of the machine, measured.
        seconds_before: wall time of the run before this process.
        clock: returns the time in seconds.
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
        """Begin a new interval, so that the time since the last step, such as an evaluation, does not count."""
        self._interval, self._steps = self._clock(), 0

    def count_step(self) -> None:
        """Count one step."""
        self._steps += 1

    def read(self) -> tuple[float, float]:
        """Return training tokens per second and MFU since the last reading or restart; begin a new interval.

        MFU is the model FLOP/s as a fraction of `matmul_rate` (Chowdhery et al. 2022, 2204.02311, appendix B).
        """
        per_second = self._steps / max(self._clock() - self._interval, 1e-9)
        self.restart()
        return self._tokens * per_second, self._flops * per_second / self._rate


def meter_of(config: Config, matmul_rate: float, seconds_before: float) -> SpeedMeter:
    """Return the meter of a run, whose steps are those of its resolved configuration."""
    sequences, length = config.train.batch_size * config.train.grad_accum_steps, config.model.block_size
    flops = training_flops(config.model, sequences, length)
    return SpeedMeter(sequences * length, flops, matmul_rate, seconds_before)
