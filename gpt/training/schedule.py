"""The learning rate as a pure function of the step: nothing to save, nothing to restore."""

import math

from gpt.config import OptimConfig


def learning_rate(step: int, config: OptimConfig, max_steps: int) -> float:
    """Learning rate of update `step`, counted from 0.

    Linear warmup reaches the peak on its last step; then the schedule falls to `min_lr`, which it
    keeps from `decay_steps` (cosine) or `max_steps` (wsd) on.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    share = {"cosine": _cosine, "wsd": _warmup_stable_decay, "constant": _constant}[config.schedule]
    return config.min_lr + (config.learning_rate - config.min_lr) * share(step, config, max_steps)


def _cosine(step: int, config: OptimConfig, max_steps: int) -> float:
    """Half a cosine from 1 to 0 (Loshchilov and Hutter 2016, 1608.03983, equation 5)."""
    end = config.decay_steps or max_steps
    progress = (step - config.warmup_steps) / max(1, end - config.warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def _warmup_stable_decay(step: int, config: OptimConfig, max_steps: int) -> float:
    """1, then a line to 0 over the last `decay_steps` (Hu et al. 2024, 2404.06395, section 4)."""
    length = min(config.decay_steps or max(1, max_steps // 5), max(1, max_steps - config.warmup_steps))
    return min(1.0, max(0.0, (max_steps - step) / length))


def _constant(step: int, config: OptimConfig, max_steps: int) -> float:
    return 1.0
