"""Speculative decoding: several tokens a pass, by drafting them first (Leviathan et al. 2022, 2211.17192).

A pass over the newest token and its drafts samples after each of them. Every position has one uniform number of its
own, with which plain decoding would sample its token too; a draft is accepted if it is that token. So the text is that
of plain decoding, to the letter, and a draft x is accepted with probability p(x), as by the rule of the paper for a
drafter that is certain of x.
"""

import math
import time
from collections.abc import Sequence

from torch import Tensor

from gpt.config import SamplingParams
from gpt.generation.backends import TokenIds
from gpt.generation.backends.native import NativeBackend
from gpt.generation.decoder import MAX_STEPS, MultiStepDecoder, describe, not_finite
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


class SpeculativeDecoder(MultiStepDecoder):
    """`MultiStepDecoder` that tries drafts, and uses them as long as that is faster.

    Whether it is, is measured; the text does not depend on it.

    Attributes:
        drafted: draft tokens that were verified.
        accepted: how many of them were accepted.

    Args:
        backend: not used before, with room for `MAX_DRAFTS` more tokens per sequence.
        drafter: proposes tokens.
        prompts: token ids, at least one each.
        params: sampling parameters of all sequences.
        seeds: one per sequence.

    Raises:
        GenerationError: a prompt is empty.
    """

    def __init__(
        self,
        backend: NativeBackend,
        drafter: Drafter,
        prompts: Sequence[TokenIds],
        params: SamplingParams,
        seeds: Sequence[int],
    ) -> None:
        super().__init__(backend, prompts, params, seeds)
        self.drafted = self.accepted = 0
        self._drafter, self._draft_length = drafter, MAX_DRAFTS
        self._plain_left, self._pause = FIRST_PLAIN, FIRST_PAUSE
        self._plain_seconds = math.inf  # per token, of the fastest plain call: in others a window moves
        self._lost = 0.0  # tokens' time

    @property
    def acceptance(self) -> float | None:
        return self.accepted / self.drafted if self.drafted else None

    def _refill(self) -> None:
        start, before = time.perf_counter(), self._total_length()
        if self._plain_left > 0:
            super()._refill()
            tokens = self._total_length() - before
            seconds, steps = time.perf_counter() - start, tokens // len(self.active)
            self._plain_seconds = min(self._plain_seconds, seconds / tokens)
            is_reliable = seconds >= RELIABLE or steps >= MAX_STEPS
            self._plain_left = max(self._plain_left - steps, 0 if is_reliable else 1)
        else:
            verified = self._refill_with_drafts([index for index in self.active if not self._queues[index]])
            self._weigh(time.perf_counter() - start, verified, self._total_length() - before)

    def _weigh(self, seconds: float, verified: int, tokens: int) -> None:
        """Count what a pass with drafts has lost or gained, and pause drafting where it has lost too much."""
        cost = min(seconds / self._plain_seconds, HICCUP * verified)
        self._lost = max(-MAX_LOST, self._lost + cost - tokens)
        if self._lost > MAX_LOST:
            self._plain_left, self._pause, self._lost = self._pause, 4 * self._pause, 0.0
            self._plain_seconds = math.inf

    def _refill_with_drafts(self, indices: Sequence[int]) -> int:
        """Draft and verify for some sequences; return how many positions went into the pass."""
        sequences = [self._sequences[index] for index in indices]
        drafts = [
            self._drafter.draft(index, self._sequences[index], self._random[index].peek(self._room_for_drafts(index)))
            for index in indices
        ]
        uniforms = [self._random[index].peek(len(draft) + 1) for index, draft in zip(indices, drafts, strict=True)]
        places = [self.active.index(index) for index in indices]
        keep_logits = self._params.logprobs is not None
        results = self._backend.verify(
            places, sequences, drafts, uniforms, self._params, self._seen(sequences), keep_logits
        )
        for index, draft, (sampled, logits) in zip(indices, drafts, results, strict=True):
            self._accept(index, draft, sampled, logits)
        return len(indices) + sum(map(len, drafts))

    def _accept(self, index: int, draft: Sequence[int], sampled: Sequence[int], logits: Tensor | None) -> None:
        """Append the accepted drafts and the token after them.

        Raises:
            GenerationError: the logits after the newest token of the sequence are not finite.
        """
        sequence, accepted = self._sequences[index], _count_accepted(draft, sampled)
        tokens = list(sampled[: 1 + accepted])
        if tokens[-1] < 0 and len(tokens) == 1:
            raise not_finite(len(sequence) - 1)
        if tokens[-1] < 0:  # the next pass says so, if its token is needed
            tokens.pop()
        self._random[index].advance(len(tokens))
        kept = None if logits is None else logits[: len(tokens)]
        self._queues[index] += describe(tokens, kept, self._params)
        sequence += tokens
        self.drafted += len(draft)
        self.accepted += accepted
        self._adapt(accepted, len(draft))

    def _room_for_drafts(self, index: int) -> int:
        sequence = self._sequences[index]
        left = self._final_lengths[index] - len(sequence)
        return max(0, min(self._draft_length, left - 1, self._backend.room([sequence]) - 1))

    def _adapt(self, accepted: int, drafted: int) -> None:
        """Draft more where all were accepted, fewer where none was."""
        if accepted == drafted:
            self._draft_length = min(self._draft_length + 1, MAX_DRAFTS)
        elif accepted == 0:
            self._draft_length = max(self._draft_length - 1, 1)

    def _total_length(self) -> int:
        return sum(len(self._sequences[index]) for index in self.active)


def _count_accepted(draft: Sequence[int], sampled: Sequence[int]) -> int:
    """Return how many drafts are what was sampled in their place, up to the first that is not."""
    pairs = zip(draft, sampled, strict=False)
    return next((i for i, (proposed, token) in enumerate(pairs) if proposed != token), len(draft))
