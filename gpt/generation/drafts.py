"""Where drafts come from: guesses at the next tokens, cheap enough to be wrong."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from gpt.config import SamplingParams
from gpt.data.ngrams import NgramTable
from gpt.generation.backends import TokenIds
from gpt.generation.backends.native import NativeBackend
from gpt.kernels.decoding.engine import NotFiniteError

LEAST_CHANCE = 0.2
"""Of a draft to stand together with those before it; checking it costs about as much of a token's time."""
LOOKUP_LENGTHS = (12, 8, 5, 3)
"""Lengths of endings that are looked for, longest first."""


class Drafter(Protocol):
    """Guesses the tokens after a context."""

    def draft(self, row: int, context: TokenIds, uniforms: Sequence[float]) -> list[int]:
        """Tokens that may follow the context of a row, which only grows between calls.

        Args:
            row: its number.
            context: all of it.
            uniforms: the numbers that will decide the next tokens, at most one for each draft.
        """
        ...


class NgramDrafter:
    """What usually followed in the training text.

    Args:
        table: of the same vocabulary.
    """

    def __init__(self, table: NgramTable) -> None:
        self._table = table
        _ = table.followers  # made now, so that the first guess is no slower than the others

    def draft(self, row: int, context: TokenIds, uniforms: Sequence[float]) -> list[int]:
        text, drafts, chance = list(context[-len(self._table.keys) :]), list[int](), 1.0
        for _ in uniforms:
            token, share = self._table.next(text) or (0, 0.0)
            chance *= share
            if chance < LEAST_CHANCE:
                break
            drafts.append(token)
            text.append(token)
        return drafts


class LookupDrafter:
    """What followed when the context's ending stood in it before (prompt lookup, Saxena 2023).

    For texts that repeat themselves: code, tables, names.
    """

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, list[dict[tuple[int, ...], int]]]] = {}

    def draft(self, row: int, context: TokenIds, uniforms: Sequence[float]) -> list[int]:
        done, places = self._seen.get(row, (0, [{} for _ in LOOKUP_LENGTHS]))
        for end in range(done + 1, len(context)):  # endings before the present one, and where they end
            for length, known in zip(LOOKUP_LENGTHS, places, strict=True):
                if end >= length:
                    known[tuple(context[end - length : end])] = end
        self._seen[row] = (max(done, len(context) - 1), places)
        for length, known in zip(LOOKUP_LENGTHS, places, strict=True):
            place = known.get(tuple(context[-length:]))
            if place is not None:
                return list(context[place : place + len(uniforms)])
        return []


class ModelDrafter:
    """What a smaller model would draw, by the same numbers: where both agree on a distribution, they draw the same.

    Args:
        make_backend: of the smaller model, for one row.
        params: how to draw.
    """

    def __init__(self, make_backend: Callable[[], NativeBackend], params: SamplingParams) -> None:
        self._make_backend, self._params = make_backend, params
        self._backends: dict[int, NativeBackend] = {}

    def draft(self, row: int, context: TokenIds, uniforms: Sequence[float]) -> list[int]:
        if row not in self._backends:
            self._backends[row] = self._make_backend()
        backend = self._backends[row]
        count = min(len(uniforms), backend.room([context]))
        if count < 1:
            return []
        try:
            sampled, _ = backend.generate(
                [context], torch.tensor([uniforms[:count]]), self._params, None, keep_logits=False
            )
        except NotFiniteError:  # a guess may fail; the text does not depend on it
            return []
        return sampled[0]
