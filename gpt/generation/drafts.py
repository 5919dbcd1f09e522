"""Drafters of speculative decoding: they propose the next tokens, at little cost."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from gpt.config import SamplingParams
from gpt.data.ngrams import NgramTable
from gpt.generation.backends import TokenIds
from gpt.generation.backends.native import NativeBackend
from gpt.kernels.decoding.engine import NotFiniteError

MIN_PROBABILITY = 0.2
"""Least probability that a draft and all before it are accepted: verifying it costs about this share of a token."""
LOOKUP_LENGTHS = (12, 8, 5, 3)
"""Lengths of suffixes that are looked up, longest first."""


class Drafter(Protocol):
    """Proposes the next tokens of a sequence."""

    def draft(self, index: int, sequence: TokenIds, uniforms: Sequence[float]) -> list[int]:
        """Return tokens that may come next.

        Args:
            index: which sequence.
            sequence: all of it; it only grows between calls.
            uniforms: the numbers that will decide the next tokens, at most one for each draft.
        """
        ...


class NgramDrafter:
    """Proposes what usually followed in the training text.

    Args:
        table: n-grams over the same vocabulary.
    """

    def __init__(self, table: NgramTable) -> None:
        self._table = table
        _ = table.followers  # built now, so that the first draft is as fast as the others

    def draft(self, index: int, sequence: TokenIds, uniforms: Sequence[float]) -> list[int]:
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
        self._seen: dict[int, tuple[int, list[dict[tuple[int, ...], int]]]] = {}

    def draft(self, index: int, sequence: TokenIds, uniforms: Sequence[float]) -> list[int]:
        done, tables = self._seen.get(index, (0, [{} for _ in LOOKUP_LENGTHS]))
        for end in range(done + 1, len(sequence)):  # suffixes before the present one, and where they end
            for length, table in zip(LOOKUP_LENGTHS, tables, strict=True):
                if end >= length:
                    table[tuple(sequence[end - length : end])] = end
        self._seen[index] = (max(done, len(sequence) - 1), tables)
        for length, table in zip(LOOKUP_LENGTHS, tables, strict=True):
            found = table.get(tuple(sequence[-length:]))
            if found is not None:
                return list(sequence[found : found + len(uniforms)])
        return []


class ModelDrafter:
    """Proposes what a smaller model samples with the same numbers: where both distributions agree, so do the samples.

    Args:
        make_backend: makes a backend of the draft model, for one sequence.
        params: how to sample.
    """

    def __init__(self, make_backend: Callable[[], NativeBackend], params: SamplingParams) -> None:
        self._make_backend, self._params = make_backend, params
        self._backends: dict[int, NativeBackend] = {}

    def draft(self, index: int, sequence: TokenIds, uniforms: Sequence[float]) -> list[int]:
        if index not in self._backends:
            self._backends[index] = self._make_backend()
        backend = self._backends[index]
        count = min(len(uniforms), backend.room([sequence]))
        if count < 1:
            return []
        numbers = torch.tensor([uniforms[:count]], dtype=torch.float32)
        try:
            sampled, _ = backend.generate([sequence], numbers, self._params, None, keep_logits=False)
        except NotFiniteError:  # the text does not depend on drafts
            return []
        return sampled[0]
