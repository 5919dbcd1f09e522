"""The learning rate and the length of sequences: functions of the step, without state to save."""

import math
from collections.abc import Callable

from gpt.config import Config, OptimConfig
from gpt.system.progress import Report


def fit_schedule(config: Config, report: Report) -> Config:
    """Return the configuration with a warmup that fits into a short run; report every change.

    A warmup that is as long as the run is cut to a tenth of the run. A decay that is longer than
    the steps after the warmup is only reported here, since `_warmup_stable_decay` cuts it.
    """
    optim = config.optim
    max_steps = config.train.max_steps
    reason = f"since train.max_steps is {max_steps}"
    if optim.warmup_steps >= max_steps:
        warmup_steps = max_steps // 10
        report(f"optim.warmup_steps: {warmup_steps} instead of {optim.warmup_steps}, {reason}")
        optim = optim.model_copy(update={"warmup_steps": warmup_steps})
    # Only the schedule `wsd` cuts a long decay; a cosine simply does not reach its end.
    steps_left = max(1, max_steps - optim.warmup_steps)
    decay_steps = optim.decay_steps
    if optim.schedule == "wsd" and decay_steps is not None and decay_steps > steps_left:
        report(f"optim.decay_steps: {steps_left} instead of {decay_steps}, {reason}")
    return config.model_copy(update={"optim": optim})


def learning_rate(step: int, config: OptimConfig, max_steps: int) -> float:
    """Return the learning rate of update `step`, counted from 0.

    Linear warmup reaches the peak in its last step. Then the rate falls to `min_lr`, which it
    reaches at `decay_steps` (cosine) or `max_steps` (wsd), and stays there.
    """
    if step < config.warmup_steps:
        # `step + 1`, since a rate of 0 would make the first step useless.
        return config.learning_rate * (step + 1) / config.warmup_steps
    # The factor is between 1 (the peak) and 0 (`min_lr`).
    factor = SCHEDULES[config.schedule](step, config, max_steps)
    return config.min_lr + (config.learning_rate - config.min_lr) * factor


def sequence_length(step: int, config: Config) -> int:
    """Return the length of the sequences of update `step`, counted from 0.

    The length grows during the run if `train.length_warmup` is given: a training that begins with
    short sequences is more stable (Li et al. 2021, 2108.06084).
    """
    phase_end = 0  # the step at which a phase with one length ends
    for length, num_steps in config.sequence_lengths():
        phase_end += num_steps
        if step < phase_end:
            return length
    raise AssertionError(f"step {step} is after the last step of the run")


def _cosine(step: int, config: OptimConfig, max_steps: int) -> float:
    """Return a factor that falls from 1 to 0 along half a period of a cosine.

    See Loshchilov and Hutter 2016, 1608.03983, equation 5.
    """
    # Without `optim.decay_steps` the decay ends with the run.
    end_step = config.decay_steps or max_steps
    # `max` avoids a division by zero if the decay ends with the warmup.
    num_decay_steps = max(1, end_step - config.warmup_steps)
    progress = min(1.0, (step - config.warmup_steps) / num_decay_steps)
    return 0.5 * (1 + math.cos(math.pi * progress))


def _warmup_stable_decay(step: int, config: OptimConfig, max_steps: int) -> float:
    """Return a factor of 1, which falls linearly to 0 in the last `optim.decay_steps` steps.

    `learning_rate` does the warmup, which is the same for all schedules. See Hu et al. 2024,
    2404.06395, section 4.
    """
    # By default the decay takes the last fifth of the run.
    wanted_steps = config.decay_steps or max(1, max_steps // 5)
    # The decay cannot begin before the warmup has ended.
    steps_after_warmup = max(1, max_steps - config.warmup_steps)
    decay_steps = min(wanted_steps, steps_after_warmup)
    # The part of the decay that is left. It is above 1 before the decay begins, and below 0 after
    # the last step of the run.
    fraction_left = (max_steps - step) / decay_steps
    return min(1.0, max(0.0, fraction_left))


def _constant(step: int, config: OptimConfig, max_steps: int) -> float:
    return 1.0


SCHEDULES: dict[str, Callable[[int, OptimConfig, int], float]] = {
    "cosine": _cosine,
    "wsd": _warmup_stable_decay,
    "constant": _constant,
}
"""By `optim.schedule`: the factor of a step after the warmup, from 1 (the peak) to 0 (`min_lr`)."""
