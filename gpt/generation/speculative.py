"""Speculative decoding: several tokens a pass, by guessing them first (Leviathan et al. 2022, 2211.17192).

A pass over the newest token and its drafts gives what would be sampled after each. Every position has
one uniform number of its own, with which plain decoding would draw its token too; a draft stands if it
is that token. So the text is the one of plain decoding, to the letter, and a draft x stands with
probability p(x): as often as the paper's rule accepts a draft that was not sampled at random.
"""

import math
import time
from collections.abc import Sequence

from torch import Tensor

from gpt.config import SamplingParams
from gpt.generation.backends.native import NativeBackend
from gpt.generation.decoder import describe, not_finite
from gpt.generation.drafts import Drafter
from gpt.generation.multi_step import MOST_AHEAD, MultiStepDecoder

MOST_DRAFTS = 5
"""For one pass and row: with the newest token, as many as the engine multiplies at once by what it reads."""
MOST_LOST = 4.0
"""Tokens' time that drafts may lose against plain decoding before it goes on without; as much can be saved up."""
HICCUP = 2.0
"""Tokens' time that a pass counts for at most, for each position in it: something else on the machine took longer."""
SURE = 0.002
"""Seconds that a call without drafts is to take, or as many tokens as can be, before its speed is believed."""
FIRST_STRETCH, FIRST_PAUSE = 8, 100
"""Tokens without drafts at first, to see how quick that is; and after drafts have lost, then four times as many."""


class SpeculativeDecoder(MultiStepDecoder):
    """`MultiStepDecoder` that tries drafts, and goes on with them while that is quicker.

    Whether it is, is measured; the text does not depend on it.

    Attributes:
        drafted: tokens that were guessed.
        accepted: how many of them stood.

    Args:
        backend: not used before, with room for `MOST_DRAFTS` more tokens a row.
        drafter: guesses.
        prompts: token ids, at least one each.
        params: of all rows.
        seeds: one per row.

    Raises:
        GenerationError: a prompt is empty.
    """

    def __init__(
        self,
        backend: NativeBackend,
        drafter: Drafter,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        seeds: Sequence[int],
    ) -> None:
        super().__init__(backend, prompts, params, seeds)
        self.drafted = self.accepted = 0
        self._drafter, self._count = drafter, MOST_DRAFTS
        self._plain_left, self._pause = FIRST_STRETCH, FIRST_PAUSE
        self._plain_seconds = math.inf  # a token, of the quickest call of a stretch: in others a window moves
        self._lost = 0.0  # tokens' time

    @property
    def acceptance(self) -> float | None:
        return self.accepted / self.drafted if self.drafted else None

    def _extend(self) -> None:
        start, before = time.perf_counter(), self._positions()
        if self._plain_left > 0:
            super()._extend()
            tokens = self._positions() - before
            seconds, steps = time.perf_counter() - start, tokens // len(self.active)
            self._plain_seconds = min(self._plain_seconds, seconds / tokens)
            is_sure = seconds >= SURE or steps >= MOST_AHEAD
            self._plain_left = max(self._plain_left - steps, 0 if is_sure else 1)
        else:
            checked = self._draw_with_drafts([row for row in self.active if not self._queues[row]])
            self._weigh(time.perf_counter() - start, checked, self._positions() - before)

    def _weigh(self, seconds: float, checked: int, tokens: int) -> None:
        """Count what a pass with drafts has lost or gained, and pause them where they have lost too much."""
        taken = min(seconds / self._plain_seconds, HICCUP * checked)
        self._lost = max(-MOST_LOST, self._lost + taken - tokens)
        if self._lost > MOST_LOST:
            self._plain_left, self._pause, self._lost = self._pause, 4 * self._pause, 0.0
            self._plain_seconds = math.inf

    def _draw_with_drafts(self, rows: Sequence[int]) -> int:
        """Guess and check for some rows; how many positions went into the pass."""
        contexts = [self._contexts[row] for row in rows]
        drafts = [
            self._drafter.draft(row, self._contexts[row], self._uniforms[row].peek(self._room_for_drafts(row)))
            for row in rows
        ]
        uniforms = [self._uniforms[row].peek(len(draft) + 1) for row, draft in zip(rows, drafts, strict=True)]
        places = [self.active.index(row) for row in rows]
        results = self._backend.verify(
            places, contexts, drafts, uniforms, self._params, self._seen(contexts), self._params.logprobs is not None
        )
        for row, draft, (sampled, logits) in zip(rows, drafts, results, strict=True):
            self._accept(row, draft, sampled, logits)
        return len(rows) + sum(map(len, drafts))

    def _accept(self, row: int, draft: Sequence[int], sampled: Sequence[int], logits: Tensor | None) -> None:
        """Take over the drafts that stood, and the token after them.

        Raises:
            GenerationError: the logits after the row's newest token are not finite.
        """
        context, stood = self._contexts[row], _standing(draft, sampled)
        tokens = list(sampled[: 1 + stood])
        if tokens[-1] < 0 and len(tokens) == 1:
            raise not_finite(len(context) - 1)
        if tokens[-1] < 0:  # the next pass says so, if anybody asks for it
            tokens.pop()
        self._uniforms[row].take(len(tokens))
        kept = None if logits is None else logits[: len(tokens)]
        self._queues[row] += describe(tokens, kept, self._params.logprobs)
        context += tokens
        self.drafted += len(draft)
        self.accepted += stood
        self._adapt(stood, len(draft))

    def _room_for_drafts(self, row: int) -> int:
        context = self._contexts[row]
        left = self._goals[row] - len(context)
        return max(0, min(self._count, left - 1, self._backend.room([context]) - 1))

    def _adapt(self, stood: int, drafted: int) -> None:
        """More drafts where all stood, fewer where all fell."""
        if stood == drafted:
            self._count = min(self._count + 1, MOST_DRAFTS)
        elif stood == 0:
            self._count = max(self._count - 1, 1)

    def _positions(self) -> int:
        return sum(len(self._contexts[row]) for row in self.active)


def _standing(draft: Sequence[int], sampled: Sequence[int]) -> int:
    """How many drafts are what was sampled in their place, up to the first that is not."""
    return next((i for i, (guess, token) in enumerate(zip(draft, sampled, strict=False)) if guess != token), len(draft))
