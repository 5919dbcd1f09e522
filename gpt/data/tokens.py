"""The token ids of a split: an array, or several memory-mapped files that are read as one."""

import mmap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

KEEP_RESIDENT = 16 << 20
"""Size in bytes up to which a token file stays in memory; the pages of a larger one are released after reading."""
PIECE = 1 << 20
"""Tokens that are read at a time where all of them are read."""


class TokenShards:
    """Adjacent arrays of token ids, of one dtype and none of them empty, read as one without a copy of all of them."""

    def __init__(self, shards: Sequence[NDArray[Any]]) -> None:
        self.shards = list(shards)
        self.dtype = self.shards[0].dtype
        self._ends = np.cumsum([len(shard) for shard in self.shards])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, key: Any) -> Any:
        """Return a view for a slice without a step, an array for an array of indices in any shape."""
        if isinstance(key, slice):
            begin, end, step = key.indices(len(self))
            assert step == 1
            return join_shards(self.shards, begin, max(begin, end))
        return self._gather(np.asarray(key))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.concatenate(self.shards).astype(dtype or self.dtype, copy=False)

    def _gather(self, indices: NDArray[np.integer[Any]]) -> NDArray[Any]:
        shard_of = np.searchsorted(self._ends, indices, side="right")
        found = np.empty(indices.shape, self.dtype)
        for number in np.unique(shard_of):
            inside = shard_of == number
            shard = self.shards[number]
            found[inside] = shard[indices[inside] - (int(self._ends[number]) - len(shard))]
        return found


class Mixture(TokenShards):
    """The token ids of several texts, one after the other, that are sampled by weight.

    Attributes:
        ranges: where each begins and ends, (S, 2) int64.
        weights: how often a window is one of each, (S,); they need not add up to 1.
    """

    def __init__(self, texts: Sequence["Tokens"], weights: Sequence[float] | None) -> None:
        super().__init__(
            [shard for text in texts for shard in (text.shards if isinstance(text, TokenShards) else [text])]
        )
        ends = np.cumsum([len(text) for text in texts])
        self.ranges = np.stack([np.append(0, ends[:-1]), ends], axis=1)
        self.weights = np.array([len(text) for text in texts] if weights is None else weights, dtype=np.float64)


Tokens = NDArray[Any] | TokenShards
"""Token ids of a split, (N,): in memory or memory-mapped."""


def join_shards(shards: Sequence[NDArray[Any]], begin: int, end: int) -> Tokens:
    """Return the tokens from `begin` to `end`, counted from the first of adjacent shards; in one shard, an array."""
    parts, first = [], 0
    for shard in shards:
        part = shard[max(0, begin - first) : max(0, end - first)]
        first += len(shard)
        if len(part):
            parts.append(part)
    if len(parts) > 1:
        return TokenShards(parts)
    return parts[0] if parts else shards[0][:0]


def in_pieces(tokens: Tokens) -> Iterator[NDArray[Any]]:
    """Yield the tokens in order, in arrays of at most `PIECE`, and release those that were read."""
    for begin in range(0, len(tokens), PIECE):
        yield np.asarray(tokens[begin : begin + PIECE])
        release_pages(tokens)


def release_pages(tokens: Tokens) -> None:
    """Release the resident pages of large memory-mapped files, which otherwise grow with every read."""
    shards = tokens.shards if isinstance(tokens, TokenShards) else [tokens]
    mappings = [getattr(shard, "_mmap", None) for shard in shards]
    mapped = [mapping for mapping in mappings if isinstance(mapping, mmap.mmap)]
    if sum(map(len, mapped)) > KEEP_RESIDENT and hasattr(mmap, "MADV_DONTNEED"):
        for mapping in mapped:
            mapping.madvise(mmap.MADV_DONTNEED)
