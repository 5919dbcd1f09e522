"""The schedules of the learning rate and of the length of sequences: functions of the step, without a state to save."""

import itertools
import math
from collections.abc import Callable

from gpt.config import Config, OptimConfig
from gpt.system.progress import Report


def fit_schedule(config: Config, report: Report) -> Config:
    """Return the configuration with a warmup and decay that fit into a short run.

    A warmup as long as the run is cut to a tenth of it, a decay to at most the rest; every change is reported.
    """
    optim, steps = config.optim, config.train.max_steps
    if optim.warmup_steps >= steps:
        report(f"optim.warmup_steps: {steps // 10} instead of {optim.warmup_steps}, since train.max_steps is {steps}")
        optim = optim.model_copy(update={"warmup_steps": steps // 10})
    left = max(1, steps - optim.warmup_steps)
    if optim.schedule == "wsd" and optim.decay_steps is not None and optim.decay_steps > left:
        report(f"optim.decay_steps: {left} instead of {optim.decay_steps}, since train.max_steps is {steps}")
    return config.model_copy(update={"optim": optim})


def learning_rate(step: int, config: OptimConfig, max_steps: int) -> float:
    """Return the learning rate of update `step`, counted from 0.

    Linear warmup reaches the peak in its last step. Then the rate falls to `min_lr`, reaches it at
    `decay_steps` (cosine) or `max_steps` (wsd), and stays there.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    factor = SCHEDULES[config.schedule](step, config, max_steps)
    return config.min_lr + (config.learning_rate - config.min_lr) * factor


def sequence_length(step: int, config: Config) -> int:
    """Return the length of the sequences of update `step`, counted from 0 (Li et al. 2021, 2108.06084)."""
    lengths = config.sequence_lengths()
    ends = itertools.accumulate(steps for _, steps in lengths)
    return next(length for (length, _), end in zip(lengths, ends, strict=True) if step < end)


def _cosine(step: int, config: OptimConfig, max_steps: int) -> float:
    """Return half a period of a cosine, from 1 to 0 (Loshchilov and Hutter 2016, 1608.03983, equation 5)."""
    end = config.decay_steps or max_steps
    progress = (step - config.warmup_steps) / max(1, end - config.warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def _warmup_stable_decay(step: int, config: OptimConfig, max_steps: int) -> float:
    """Return 1, then fall linearly to 0 over the last `decay_steps` (Hu et al. 2024, 2404.06395, section 4)."""
    length = min(config.decay_steps or max(1, max_steps // 5), max(1, max_steps - config.warmup_steps))
    return min(1.0, max(0.0, (max_steps - step) / length))


def _constant(step: int, config: OptimConfig, max_steps: int) -> float:
    return 1.0


SCHEDULES: dict[str, Callable[[int, OptimConfig, int], float]] = {
    "cosine": _cosine,
    "wsd": _warmup_stable_decay,
    "constant": _constant,
}
"""By `optim.schedule`: the learning rate of a step after the warmup, from 1 (peak) to 0 (`min_lr`)."""
