"""Which split of the threads computes the next call, by the times of those before."""

from collections import Counter

import pytest

from gpt.generation.thread_tuner import TRIAL_CALLS, Split, ThreadTuner, token_splits

BY_SEQUENCE = Split(8, by_sequence=True)
ALL_THREADS = Split(8)
SPLITS = [BY_SEQUENCE, ALL_THREADS, Split(4), Split(2), Split(1)]


class Clock:
    """A tuner, and the seconds that a token takes by each split."""

    def __init__(self, seconds: list[float], first: Split = ALL_THREADS) -> None:
        self.tuner = ThreadTuner(SPLITS, first, first_calls=2)
        self.seconds = dict(zip(SPLITS, seconds, strict=True))

    def calls(self, count: int) -> list[Split]:
        """Compute some calls; return their splits."""
        splits = []
        for _ in range(count):
            split = self.tuner.next()
            self.tuner.record(split, self.seconds[split])
            splits.append(split)
        return splits


@pytest.mark.parametrize(
    ("threads", "expected"), [(1, [1]), (2, [2, 1]), (6, [6, 3, 1]), (8, [8, 4, 2, 1])]
)
def test_token_splits_halve_the_threads(threads: int, expected: list[int]) -> None:
    assert token_splits(threads) == [Split(number) for number in expected]


def test_tuner_finds_the_fastest_split_by_its_neighbors() -> None:
    clock = Clock([1.5, 1.0, 0.4, 0.7, 0.8])
    tried = [Split(8), Split(8), Split(4), Split(2), Split(8), BY_SEQUENCE]
    assert clock.calls(6) == tried
    assert clock.tuner.fastest == Split(4)


def test_tuner_tries_other_splits_once_in_a_while() -> None:
    clock = Clock([1.5, 1.0, 0.4, 0.7, 0.8])
    clock.calls(TRIAL_CALLS)
    counts = Counter(clock.calls(3 * TRIAL_CALLS))
    assert counts == {Split(4): 3 * TRIAL_CALLS - 9, BY_SEQUENCE: 3, Split(8): 3, Split(2): 3}


def test_tuner_keeps_the_fastest_split_after_one_slow_call() -> None:
    clock = Clock([1.5, 1.0, 0.4, 0.7, 0.8])
    clock.calls(10)
    clock.tuner.record(Split(4), 0.9)
    clock.tuner.record(Split(2), 0.7)
    assert clock.tuner.fastest == Split(4)


def test_tuner_leaves_a_split_that_has_become_slow() -> None:
    clock = Clock([1.5, 1.0, 0.4, 0.7, 0.8])
    clock.calls(10)
    clock.seconds[Split(4)] = 2.0  # another process has a core
    clock.calls(2 * TRIAL_CALLS)
    assert clock.tuner.fastest == Split(2)


def test_tuner_reaches_the_first_split_from_any_other() -> None:
    clock = Clock([0.3, 0.5, 0.6, 0.9, 1.0], first=Split(1))
    clock.calls(TRIAL_CALLS)
    assert clock.tuner.fastest == BY_SEQUENCE
