"""The learning-rate schedule as a pure function of the step: nothing to save, nothing to restore."""

import math

from gpt.config import Config, OptimConfig
from gpt.report import Report


def fit_schedule(config: Config, report: Report) -> Config:
    """Return the configuration with a warmup that leaves most of a short run for the schedule after it.

    A warmup that takes the whole run becomes a tenth of it; whatever is changed is reported.
    """
    optim, steps = config.optim, config.train.max_steps
    if optim.schedule == "constant":
        return config
    if optim.warmup_steps >= steps:
        report(f"optim.warmup_steps: {steps // 10} instead of {optim.warmup_steps}, since train.max_steps is {steps}")
        optim = optim.model_copy(update={"warmup_steps": steps // 10})
    left = max(1, steps - optim.warmup_steps)
    if optim.schedule == "wsd" and optim.decay_steps is not None and optim.decay_steps > left:
        report(f"optim.decay_steps: {left} instead of {optim.decay_steps}, since train.max_steps is {steps}")
    return config.model_copy(update={"optim": optim})


def learning_rate(step: int, config: OptimConfig, max_steps: int) -> float:
    """Return the learning rate of update `step`, counted from 0.

    Linear warmup reaches the peak on its last step; then the schedule falls to `min_lr`, which it
    keeps from `decay_steps` (cosine) or `max_steps` (wsd) on.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    share = {"cosine": _cosine, "wsd": _warmup_stable_decay, "constant": _constant}[config.schedule]
    return config.min_lr + (config.learning_rate - config.min_lr) * share(step, config, max_steps)


def _cosine(step: int, config: OptimConfig, max_steps: int) -> float:
    """Return half a cosine from 1 to 0 (Loshchilov and Hutter 2016, 1608.03983, equation 5)."""
    end = config.decay_steps or max_steps
    progress = (step - config.warmup_steps) / max(1, end - config.warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def _warmup_stable_decay(step: int, config: OptimConfig, max_steps: int) -> float:
    """Return 1, then a line to 0 over the last `decay_steps` (Hu et al. 2024, 2404.06395, section 4)."""
    length = min(config.decay_steps or max(1, max_steps // 5), max(1, max_steps - config.warmup_steps))
    return min(1.0, max(0.0, (max_steps - step) / length))


def _constant(step: int, config: OptimConfig, max_steps: int) -> float:
    return 1.0
