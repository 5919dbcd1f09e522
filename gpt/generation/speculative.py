"""Speculative decoding: several tokens a pass, by drafting them first (Leviathan et al. 2022, 2211.17192).

A pass over the newest token and its drafts samples after each of them. Every position has one uniform number of its
own, with which plain decoding would sample its token too; a draft is accepted if it is that token. So the text is that
of plain decoding, to the letter, and a draft x is accepted with probability p(x), as by the rule of the paper for a
drafter that is certain of x.
"""

import math
from collections.abc import Sequence

from gpt.generation.drafts import Drafter

MAX_DRAFTS = 5
"""For each pass and sequence: with the newest token, as many as the engine multiplies by weights it has read once."""
MAX_LOST = 4.0
"""Tokens' time that drafts may lose against plain decoding before they are paused; as much can be saved up."""
HICCUP = 2.0
"""Tokens' time that a pass counts for at most, for each position in it: something else on the machine took longer."""
RELIABLE = 0.002
"""Seconds that a call without drafts takes at least before its speed is believed, unless it is as long as can be."""
FIRST_PLAIN, FIRST_PAUSE = 8, 100
"""Tokens without drafts at first, to measure their speed; and after drafts have lost, then four times as many."""


class Speculation:
    """Decides by the clock whether drafts are used: as long as that is faster. The text does not depend on it.

    Attributes:
        drafted: draft tokens that were verified.
        accepted: how many of them were accepted.
    """

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
        is_reliable = seconds >= RELIABLE or is_long
        self._plain_left = max(self._plain_left - steps, 0 if is_reliable else 1)

    def weigh_drafts(self, seconds: float, verified: int, tokens: int) -> None:
        """Count what a pass over some positions has lost or gained, and pause drafting where it has lost too much."""
        cost = min(seconds / self._plain_seconds, HICCUP * verified)
        self._lost = max(-MAX_LOST, self._lost + cost - tokens)
        if self._lost > MAX_LOST:
            self._plain_left, self._pause, self._lost = self._pause, 4 * self._pause, 0.0
            self._plain_seconds = math.inf


class Drafts:
    """The drafts of one sequence: more where all were accepted, fewer where none was."""

    def __init__(self, drafter: Drafter, speculation: Speculation) -> None:
        self._drafter, self._speculation, self._length = drafter, speculation, MAX_DRAFTS

    def propose(self, sequence: Sequence[int], uniforms: Sequence[float]) -> list[int]:
        """Return tokens that may come next, at most one for each of the numbers that will decide them."""
        return self._drafter.draft(sequence, uniforms[: self._length])

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
