"""N-gram statistics: the most frequent next token after every short context of a text."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from gpt.data.tokens import Tokens

MAX_CONTEXT = 8
MAX_TOKENS = 4_000_000
"""Tokens that are counted, from the end of the text: more would take long and change little."""
MAX_BYTES = 500_000
ENTRY_BYTES = 13
"""Bytes of one entry in a checkpoint: int64 context, int32 token, uint8 share."""
MIN_CHANGE = 0.2
"""A longer context that predicts the same token is kept only if the token's share changes by more than this."""


@dataclass(frozen=True)
class NgramTable:
    """The most frequent next token after a context, and its share; the longest known context decides.

    A context is kept only if it changes the prediction of the next shorter one; of these, the table has the most
    frequent, up to `MAX_BYTES`.

    Attributes:
        vocab_size: number of token ids.
        keys: for each length from 1 on, contexts as numbers in base `vocab_size`, (N,) int64.
        tokens: the most frequent next token of each, (N,) int32.
        shares: its share of all next tokens, in 255ths, (N,) uint8; smoothed toward 0 where there are few examples.
    """

    vocab_size: int
    keys: tuple[Tensor, ...]
    tokens: tuple[Tensor, ...]
    shares: tuple[Tensor, ...]

    @cached_property
    def followers(self) -> list[dict[int, tuple[int, float]]]:
        """Return a dictionary for each length, from context to next token and share; built once, in milliseconds."""
        return [
            dict(zip(keys.tolist(), zip(tokens.tolist(), (shares / 255).tolist(), strict=True), strict=True))
            for keys, tokens, shares in zip(self.keys, self.tokens, self.shares, strict=True)
        ]

    @classmethod
    def learn(cls, text: Tokens, vocab_size: int) -> "NgramTable":
        """Build the table of a text from its token ids, (N,)."""
        ids = np.asarray(text[-MAX_TOKENS:]).astype(np.int64)
        kept: list[_Counts] = []
        shorter: _Counts | None = None
        for length in range(1, _longest(vocab_size) + 1):
            if len(ids) <= length:
                break
            counted = _count(ids, length, vocab_size)
            changes = np.ones(len(counted.contexts), dtype=bool)
            if shorter is not None:
                index = np.searchsorted(shorter.contexts, counted.contexts % vocab_size ** (length - 1))
                before = shorter.select(index.clip(max=len(shorter.contexts) - 1))
                changes = (before.tokens != counted.tokens) | (np.abs(before.shares - counted.shares) > MIN_CHANGE)
            kept.append(counted.select(changes))
            shorter = counted
        chosen = _most_frequent(kept)
        return cls(
            vocab_size,
            tuple(torch.from_numpy(one.contexts) for one in chosen),
            tuple(torch.from_numpy(one.tokens.astype(np.int32)) for one in chosen),
            tuple(torch.from_numpy((one.shares * 255).round().astype(np.uint8)) for one in chosen),
        )

    def next(self, context: Sequence[int]) -> tuple[int, float] | None:
        """Return the most likely next token and its share, or None if no suffix of the context is known."""
        key, scale, found = 0, 1, None
        for token, known in zip(reversed(context[-len(self.keys) :]), self.followers, strict=False):
            key += token * scale
            scale *= self.vocab_size
            found = known.get(key, found)
        return found

    def to_tensors(self) -> dict[str, Tensor]:
        named = {"vocab_size": torch.tensor(self.vocab_size)}
        columns = zip(self.keys, self.tokens, self.shares, strict=True)
        for length, (keys, tokens, shares) in enumerate(columns, start=1):
            named |= {f"{length}.keys": keys, f"{length}.tokens": tokens, f"{length}.shares": shares}
        return named

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> "NgramTable":
        """Build a table from the tensors of `to_tensors`.

        Raises:
            KeyError, ValueError: a tensor is missing, or has another type or length.
        """
        lengths = range(1, 1 + sum(name.endswith(".keys") for name in tensors))
        names = ("keys", "tokens", "shares")
        keys, tokens, shares = (tuple(tensors[f"{length}.{name}"] for length in lengths) for name in names)
        vocab_size = int(tensors["vocab_size"])
        for columns in zip(keys, tokens, shares, strict=True):
            if [column.dtype for column in columns] != [torch.int64, torch.int32, torch.uint8]:
                raise ValueError("the columns have other types")
            if any(column.shape != (len(columns[0]),) for column in columns):
                raise ValueError("the columns have different lengths")
            if ((columns[1] < 0) | (columns[1] >= vocab_size)).any():
                raise ValueError(f"a token is not one of {vocab_size}")
        return cls(vocab_size, keys, tokens, shares)


@dataclass(frozen=True)
class _Counts:
    """Contexts in ascending order, how often each occurs, the token that follows most often, and its share."""

    contexts: np.ndarray
    totals: np.ndarray
    tokens: np.ndarray
    shares: np.ndarray

    def select(self, chosen: np.ndarray) -> "_Counts":
        """Return the contexts at some indices, or where a mask is True."""
        return _Counts(self.contexts[chosen], self.totals[chosen], self.tokens[chosen], self.shares[chosen])


def _longest(vocab_size: int) -> int:
    """Return the longest length at which a context and one more token fit into 63 bits."""
    length = MAX_CONTEXT
    while length > 1 and vocab_size ** (length + 1) >= 2**63:
        length -= 1
    return length


def _count(ids: np.ndarray, length: int, vocab_size: int) -> _Counts:
    """Count all contexts of one length; of equally frequent tokens the lowest id is the most frequent."""
    keys = np.zeros(len(ids) - length, dtype=np.int64)
    for offset in range(length + 1):  # the context, and the token after it
        keys = keys * vocab_size + ids[offset : len(ids) - length + offset]
    pairs, counts = np.unique(keys, return_counts=True)
    context_of_pair = pairs // vocab_size
    best_first = np.lexsort((pairs, -counts, context_of_pair))
    contexts, first = np.unique(context_of_pair[best_first], return_index=True)
    best = best_first[first]
    totals = np.add.reduceat(counts, first)  # the pairs of a context are adjacent
    return _Counts(contexts, totals, pairs[best] % vocab_size, counts[best] / (totals + 1))


def _most_frequent(kept: Sequence[_Counts]) -> list[_Counts]:
    """Return the most frequent contexts, as many as fit into `MAX_BYTES`."""
    totals = np.concatenate([one.totals for one in kept]) if kept else np.zeros(0)
    room = MAX_BYTES // ENTRY_BYTES
    if len(totals) <= room:
        return list(kept)
    least = np.partition(totals, len(totals) - room)[len(totals) - room]
    return [one.select(one.totals > least) for one in kept]
