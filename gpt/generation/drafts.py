"""Drafters of speculative decoding: each proposes the next tokens of one sequence, at little cost."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from gpt.config import SamplingParams
from gpt.generation.backends import TokenIds

if TYPE_CHECKING:
    from gpt.data.ngrams import NgramTable
    from gpt.generation.backends.native import NativeBackend

MIN_PROBABILITY = 0.2
"""Least probability that a draft and all before it are accepted: verifying it costs about this share of a token."""
LOOKUP_LENGTHS = (12, 8, 5, 3)
"""Lengths of suffixes that are looked up, longest first."""


class Drafter(Protocol):
    """Proposes the next tokens of one sequence."""

    def draft(self, sequence: TokenIds, uniforms: Sequence[float]) -> list[int]:
        """Return tokens that may come next.

        Args:
            sequence: all of it; it only grows between calls.
            uniforms: the numbers that will decide the next tokens, at most one for each draft.
        """
        ...


MakeDrafter = Callable[[SamplingParams], Drafter]
"""Makes the drafter of one sequence."""


class NgramDrafter:
    """Proposes what usually followed in the training text, by a table of n-grams over the same vocabulary."""

    def __init__(self, table: "NgramTable") -> None:
        self._table = table
        # build the index now, not in the first draft
        _ = table.followers

    def draft(self, sequence: TokenIds, uniforms: Sequence[float]) -> list[int]:
        suffix, drafts, probability = list(sequence[-len(self._table.keys) :]), list[int](), 1.0
        for _ in uniforms:
            token, share = self._table.next(suffix) or (0, 0.0)
            probability *= share
            if probability < MIN_PROBABILITY:
                break
            drafts.append(token)
            suffix.append(token)
        return drafts


class LookupDrafter:
    """Proposes what followed the same suffix earlier in the sequence (prompt lookup, Saxena 2023).

    Good for repetitive text: code, tables, names.
    """

    def __init__(self) -> None:
        self._done = 0
        self._ends: list[dict[tuple[int, ...], int]] = [{} for _ in LOOKUP_LENGTHS]

    def draft(self, sequence: TokenIds, uniforms: Sequence[float]) -> list[int]:
        # suffixes before the present one, and where they end
        for end in range(self._done + 1, len(sequence)):
            for length, ends in zip(LOOKUP_LENGTHS, self._ends, strict=True):
                if end >= length:
                    ends[tuple(sequence[end - length : end])] = end
        self._done = max(self._done, len(sequence) - 1)
        for length, ends in zip(LOOKUP_LENGTHS, self._ends, strict=True):
            found = ends.get(tuple(sequence[-length:]))
            if found is not None:
                return list(sequence[found : found + len(uniforms)])
        return []


class ModelDrafter:
    """Proposes what a smaller model samples with the same numbers: where both distributions agree, so do the samples.

    The smaller model is for this sequence only.
    """

    def __init__(self, model: "NativeBackend", params: SamplingParams) -> None:
        self._model, self._params = model, params

    def draft(self, sequence: TokenIds, uniforms: Sequence[float]) -> list[int]:
        return self._model.continue_one(sequence, uniforms, self._params) if uniforms else []
