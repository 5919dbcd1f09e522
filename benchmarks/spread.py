"""Statistics of repeated measurements."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

PAUSE = 0.3
"""Seconds between two turns, in which the threads of the last one fall asleep."""


@dataclass(frozen=True)
class Spread:
    """Of some numbers.

    Attributes:
        mean: arithmetic mean.
        deviation: sample standard deviation; None of a single number.
        median: middle one.
        low: 10th percentile, by linear interpolation.
        high: 90th percentile.
    """

    mean: float
    deviation: float | None
    median: float
    low: float
    high: float


def spread_of(values: Sequence[float]) -> Spread:
    """Statistics of at least one number."""
    return Spread(
        statistics.fmean(values),
        statistics.stdev(values) if len(values) > 1 else None,
        statistics.median(values),
        percentile(values, 0.1),
        percentile(values, 0.9),
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the numbers lie, between neighbours by linear interpolation."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    left = int(position)
    right = min(left + 1, len(ordered) - 1)
    return ordered[left] + (ordered[right] - ordered[left]) * (position - left)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """How many times `ours` is `theirs`, round by round: what slowed both of a round down falls out."""
    return [their / our for our, their in zip(ours, theirs, strict=True)]


def in_turns(names: Sequence[str], rounds: int) -> list[list[str]]:
    """The order of each round: every other one backwards, so that a drift of the machine meets all alike."""
    return [list(names) if number % 2 == 0 else list(reversed(names)) for number in range(rounds)]


def show_ratios(values: Sequence[float]) -> str:
    """`1.58 (1.15-1.67)`: the median, and the lowest and highest of several."""
    middle = f"{statistics.median(values):.2f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.2f}-{max(values):.2f})"
