"""A cache seen so that every step has the same shapes: for compilers and CUDA graphs."""

import torch
from torch import Tensor

from gpt.cache.kv_cache import KVCache
from gpt.cache.stores import Store


class FixedView:
    """A `KVCache` whose lengths are a tensor, and whose layers always come whole, behind a mask.

    It stores in the cache's memory and does not count: whoever runs a step fills `lengths` before it, and
    tells the cache after it.

    Attributes:
        lengths: (B,) int64, positions that are stored in each row.

    Args:
        cache: of floats.
    """

    def __init__(self, cache: KVCache) -> None:
        self._cache, self._device = cache, cache.device
        self.lengths = torch.zeros(len(cache.lengths), dtype=torch.long, device=cache.device)

    def positions(self, new: int) -> Tensor:
        """(B, T)."""
        return self.lengths.unsqueeze(1) + torch.arange(new, device=self._device)

    def mask(self, new: int) -> Tensor:
        """(B, 1, T, capacity): keys up to each query's position."""
        keys = torch.arange(self._cache.capacity, device=self._device)
        return keys <= self.positions(new)[:, None, :, None]

    def layer(self, index: int) -> "FixedLayer":
        """The keys and values of one block."""
        return FixedLayer(self, index)

    def advance(self, new: int) -> None:
        """Nothing is counted here."""

    def _append(self, index: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self._store(self._cache.keys, index, k), self._store(self._cache.values, index, v)

    def _store(self, store: Store, index: int, x: Tensor) -> Tensor:
        store.write_ragged(index, self.positions(x.size(2)), x)
        return store.read(index, self._cache.capacity, x.dtype)


class FixedLayer:
    """One layer of a `FixedView`, as attention sees it."""

    def __init__(self, view: FixedView, index: int) -> None:
        self._view, self._index = view, index

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store new keys and values (B, K, T, D); return all of them (B, K, capacity, D)."""
        return self._view._append(self._index, k, v)
