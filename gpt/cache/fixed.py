"""A view of a cache in which every step has the same shapes, for compilers and CUDA graphs."""

import torch
from torch import Tensor

from gpt.cache.kv_cache import KVCache, LayerView, mask_after, windows
from gpt.cache.stores import Store


class FixedView:
    """A `KVCache` whose lengths are a tensor, and whose layers are always read whole, behind a mask.

    It writes into the memory of the cache but does not count: the caller sets `lengths` before a step, and
    advances the cache after it.

    Attributes:
        lengths: (B,) int64, number of stored positions of each sequence.

    Args:
        cache: a cache of floats.
    """

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self.lengths = torch.zeros(len(cache.lengths), dtype=torch.long, device=cache.device)

    def positions(self, new: int) -> Tensor:
        """Return the positions (B, T) of the next `new` tokens."""
        return self.lengths.unsqueeze(1) + torch.arange(new, device=self._cache.device)

    def mask(self, new: int) -> Tensor:
        """Return the mask (B, 1, T, capacity): keys up to each query's position."""
        return mask_after(self.positions(new), self._cache.capacity)

    def layer(self, index: int) -> LayerView:
        """Return what is stored of one block."""
        return LayerView(self, index)

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store new keys and values (B, K, T, D) of a layer; return the whole layer, (B, K, capacity, D)."""
        return self._store(self._cache.keys, layer, k), self._store(self._cache.values, layer, v)

    def extend(self, layer: int, x: Tensor, before: int) -> Tensor:
        """Store inputs x (B, T, C) of a layer's convolution; return them after the `before` ahead of them, else 0."""
        assert self._cache.inputs is not None
        found = self._store(self._cache.inputs, layer, x.unsqueeze(1)).squeeze(1)
        return windows(found, self.positions(x.size(1)), before)

    def advance(self, new: int) -> None:
        """Do nothing: the caller counts."""

    def _store(self, store: Store, layer: int, x: Tensor) -> Tensor:
        store.write_ragged(layer, self.positions(x.size(2)), x)
        return store.read(layer, self._cache.capacity, x.dtype)
