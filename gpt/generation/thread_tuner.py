"""How a call of the C++ decoder is split among threads, chosen by the clock."""

import math
from collections.abc import Sequence
from typing import NamedTuple

TRIAL_CALLS = 32
"""Calls after which other splits than the fastest are tried again.

Some of them are several times slower, so that more frequent trials would slow down decoding.
"""


class Split(NamedTuple):
    """How a call is split among threads.

    Attributes:
        by_sequence: whether each thread computes some sequences, instead of a part of every token.
    """

    threads: int
    by_sequence: bool = False


def token_splits(threads: int) -> list[Split]:
    """Return the splits of every token among all of the threads, half of them, and so on to 1."""
    splits = []
    while threads > 0:
        splits.append(Split(threads))
        threads //= 2
    return splits


class ThreadTuner:
    """Chooses the fastest of some splits; the tokens do not depend on it.

    Threads that share a token wait for each other dozens of times, and read what others have
    written: fewer threads are faster where a token is little work, or another process has one of
    the cores. A split by sequence is faster where cores are many or share no cache.

    Attributes:
        splits: in an order in which neighbors take a similar time. Those next to the fastest are
            tried now and then, and the first one, which may be far from it.
        fastest: the fastest split so far.

    Args:
        first: the split to begin with.
        first_calls: number of calls before other splits are tried. The first calls take longer,
            since they wake the threads and warm the caches.
    """

    def __init__(self, splits: Sequence[Split], first: Split, first_calls: int) -> None:
        self.splits = splits
        self.fastest = first
        self._seconds = math.inf  # per token, of the fastest split
        self._first_calls = first_calls
        self._calls = 0
        self._to_try: list[Split] = []

    def next(self) -> Split:
        """Return the split of the next call."""
        self._calls += 1
        # Other splits are tried after the first calls, and then every `TRIAL_CALLS` calls.
        if (self._calls - self._first_calls) % TRIAL_CALLS == 1:
            self._to_try = self._alternatives()
        if self._to_try:
            return self._to_try.pop()
        return self.fastest

    def record(self, split: Split, seconds: float) -> None:
        """Add the time per token of a call.

        The time of the fastest split falls at once, and rises only half of the way: one slow call
        may be due to another process.
        """
        if split == self.fastest:
            # If the new time is longer, the mean of both is the smaller number.
            self._seconds = min(seconds, (self._seconds + seconds) / 2)
        elif seconds < self._seconds:
            self.fastest = split
            self._seconds = seconds
            # The neighbors of the new fastest split may be faster still.
            self._to_try = self._alternatives()

    def _alternatives(self) -> list[Split]:
        """Return the splits next to the fastest, and the first one, in their order."""
        fastest = self.splits.index(self.fastest)
        indices = {0, fastest - 1, fastest + 1} - {fastest}
        return [split for index, split in enumerate(self.splits) if index in indices]
