"""How many tokens a small model drafts before the large one checks them, chosen by measurement."""

import math

LENGTHS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
"""Lengths of drafts. 0 is decoding without a draft.

A longer draft than 16 pays only where more than nine of ten tokens are accepted.
"""
FIRST_LENGTHS = (4, 4, 0)
"""Lengths of the drafts of the first rounds, which time decoding with a draft and without.

The first length is timed twice: the first round takes longer, since the small model then reads the
text so far.
"""
MAX_TRIAL_SHARE = 0.02
"""Share of the time that may go into trials of other lengths than the best one."""
FORGETTING = 0.98
"""Factor of the weight of earlier rounds in each round, so that about the last 50 rounds count.

Text changes, and how well a draft guesses it changes with it.
"""


class Acceptance:
    """How often a token of a draft is accepted, measured over the last rounds."""

    def __init__(self) -> None:
        # Begin as if one of two tokens was accepted, so that the first rounds do not decide alone.
        self._accepted = 1.0
        self._compared = 2.0

    @property
    def rate(self) -> float:
        return self._accepted / self._compared

    def record(self, accepted: int, compared: int) -> None:
        """Add the result of a round; tokens after the first wrong one are not compared."""
        self._accepted = FORGETTING * self._accepted + accepted
        self._compared = FORGETTING * self._compared + compared


def expected_tokens(length: int, rate: float) -> float:
    """Return how many tokens a round gives on average.

    Each token of the draft is accepted with probability `rate`, up to the first that is not, and
    the large model adds one of its own (Leviathan et al. 2023, 2211.17192, equation 1).
    """
    if rate == 1.0:
        return length + 1.0
    return (1 - rate ** (length + 1)) / (1 - rate)


class DraftLength:
    """Chooses the length of drafts with the least time per token.

    Times are measured for each length; how many tokens a length gives follows from the acceptance.
    Other lengths are tried for `MAX_TRIAL_SHARE` of the time, so that a draft that does not pay
    costs little.
    """

    def __init__(self, acceptance: Acceptance) -> None:
        self._acceptance = acceptance
        self._first_lengths = list(reversed(FIRST_LENGTHS))  # the next one is at the end
        self._round_seconds: dict[int, float] = {}
        self._last_rounds: dict[int, int] = {}  # the round that used each length last
        self._rounds = 0
        self._seconds = 0.0
        self._trial_seconds = 0.0

    def next(self) -> int:
        """Return the length of the next draft.

        The length stays the same until a round is recorded: a caller that has no room for the draft
        records none.
        """
        if self._first_lengths:
            return self._first_lengths[-1]  # `record` removes it
        best = self.best()
        if self._trial_seconds > MAX_TRIAL_SHARE * self._seconds:
            return best
        # Try the length that has not been used for the longest time; one never used comes first.
        return min(self._alternatives(best), key=lambda length: self._last_rounds.get(length, -1))

    def record(self, length: int, seconds: float, passes: int = 1) -> None:
        """Add the time of a round.

        Args:
            passes: number of passes of the large model. A round with a draft has one. A round
                without a draft may sample several tokens, and has a pass for each.
        """
        if self._first_lengths:
            self._first_lengths.pop()
        elif length != self.best():
            self._trial_seconds += seconds
        self._seconds += seconds
        self._rounds += 1
        self._last_rounds[length] = self._rounds
        # A shorter time counts fully. A longer one may be due to another process, and counts half.
        known = self._round_seconds.get(length, math.inf)
        measured = seconds / passes
        if measured < known:
            self._round_seconds[length] = measured
        else:
            self._round_seconds[length] = (measured + known) / 2

    def best(self) -> int:
        """Return the length with the least expected time per token, of those that were tried."""
        return min(self._round_seconds, key=self._seconds_per_token)

    def _seconds_per_token(self, length: int) -> float:
        return self._round_seconds[length] / expected_tokens(length, self._acceptance.rate)

    def _alternatives(self, best: int) -> list[int]:
        """Return the lengths to try: the neighbors of the best one, and 0.

        If 0 is the best, the best of the other lengths is tried in place of 0.
        """
        index = LENGTHS.index(best)
        alternatives = set(LENGTHS[max(0, index - 1) : index + 2])
        if best == 0:
            drafts = [length for length in self._round_seconds if length > 0]
            alternatives.add(min(drafts, key=self._seconds_per_token))
        else:
            alternatives.add(0)
        return sorted(alternatives - {best})
