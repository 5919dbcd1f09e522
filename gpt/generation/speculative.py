"""Speculative decoding: several tokens a pass, by drafting them first (Leviathan et al. 2022, 2211.17192).

A pass over the newest token and its drafts samples after each of them. Every position has one uniform number of its
own, with which plain decoding would sample its token too; a draft is accepted if it is that token. So the text is that
of plain decoding, to the letter, and a draft x is accepted with probability p(x), as by the rule of the paper for a
drafter that is certain of x.

Drafts are what followed the same suffix earlier in the sequence (prompt lookup, Saxena 2023): good for repetitive text,
such as code, tables and names.
"""

import math
from collections.abc import Sequence

from gpt.generation.tokens import TokenIds

LOOKUP_LENGTHS = (12, 8, 5, 3)
"""Lengths of suffixes that are looked up, longest first."""
MAX_DRAFTS = 5
"""For each pass and sequence: with the newest token, as many as the engine multiplies by weights it has read once."""
LOSS_BUDGET = 4.0
"""Tokens' time that drafts may lose against plain decoding before they are paused; as much can be saved up."""
OUTLIER_CAP = 2.0
"""Tokens' time that a pass counts for at most, for each position in it: something else on the machine took longer."""
MIN_TIMING_SECONDS = 0.002
"""Seconds that a call without drafts takes at least before its speed is believed, unless it is as long as can be."""
FIRST_PLAIN, FIRST_PAUSE = 8, 100
"""Tokens without drafts at first, to measure their speed; and after drafts have lost, then four times as many."""


class Speculation:
    """Decides by the clock whether drafts are used: as long as that is faster. The text does not depend on it."""

    def __init__(self) -> None:
        self.drafted = self.accepted = 0
        self._plain_left, self._pause = FIRST_PLAIN, FIRST_PAUSE
        # best seconds per token without drafts: in slower calls a window moves
        self._plain_seconds = math.inf
        # tokens' time
        self._lost = 0.0

    @property
    def acceptance(self) -> float | None:
        """Return the share of draft tokens that were accepted; None before the first."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def is_paused(self) -> bool:
        return self._plain_left > 0

    def weigh_plain(self, seconds: float, steps: int, sequences: int, is_long: bool) -> None:
        """Count a call without drafts that sampled `steps` tokens of each sequence; `is_long`: as many as can be."""
        self._plain_seconds = min(self._plain_seconds, seconds / (steps * sequences))
        is_reliable = seconds >= MIN_TIMING_SECONDS or is_long
        self._plain_left = max(self._plain_left - steps, 0 if is_reliable else 1)

    def weigh_drafts(self, seconds: float, verified: int, tokens: int) -> None:
        """Count what a pass over some positions has lost or gained, and pause drafting where it has lost too much."""
        cost = min(seconds / self._plain_seconds, OUTLIER_CAP * verified)
        self._lost = max(-LOSS_BUDGET, self._lost + cost - tokens)
        if self._lost > LOSS_BUDGET:
            self._plain_left, self._pause, self._lost = self._pause, 4 * self._pause, 0.0
            self._plain_seconds = math.inf


class Lookup:
    """Finds what followed the same suffix earlier in one sequence."""

    def __init__(self) -> None:
        self._done = 0
        self._ends: list[dict[tuple[int, ...], int]] = [{} for _ in LOOKUP_LENGTHS]

    def draft(self, sequence: TokenIds, count: int) -> list[int]:
        """Return at most `count` draft tokens; the sequence only grows between calls."""
        # suffixes before the present one, and where they end
        for end in range(self._done + 1, len(sequence)):
            for length, ends in zip(LOOKUP_LENGTHS, self._ends, strict=True):
                if end >= length:
                    ends[tuple(sequence[end - length : end])] = end
        self._done = max(self._done, len(sequence) - 1)
        for length, ends in zip(LOOKUP_LENGTHS, self._ends, strict=True):
            found = ends.get(tuple(sequence[-length:]))
            if found is not None:
                return list(sequence[found : found + count])
        return []


class Drafts:
    """The drafts of one sequence: more where all were accepted, fewer where none was."""

    def __init__(self, speculation: Speculation) -> None:
        self._lookup, self._speculation, self._length = Lookup(), speculation, MAX_DRAFTS

    def propose(self, sequence: TokenIds, count: int) -> list[int]:
        """Return tokens that may come next, at most `count`."""
        return self._lookup.draft(sequence, min(count, self._length))

    def accept(self, draft: Sequence[int], sampled: Sequence[int]) -> int:
        """Return how many drafts are accepted, of those that were verified by sampling in their places."""
        pairs = zip(draft, sampled, strict=False)
        accepted = next((i for i, (proposed, token) in enumerate(pairs) if proposed != token), len(draft))
        self._speculation.drafted += len(draft)
        self._speculation.accepted += accepted
        if accepted == len(draft):
            self._length = min(self._length + 1, MAX_DRAFTS)
        elif accepted == 0:
            self._length = max(self._length - 1, 1)
        return accepted
