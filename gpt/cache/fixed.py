"""A view of a cache in which every step has the same shapes, for compilers and CUDA graphs."""

import torch
from torch import Tensor

from gpt.cache.kv_cache import KVCache, LayeredCache, mask_after
from gpt.cache.stores import Store


class FixedView(LayeredCache[Store]):
    """A `KVCache` of floats whose lengths are a tensor, and whose layers are always read whole, behind a mask.

    It writes into the memory of the cache but does not count: the caller sets `lengths` before a step, and
    advances the cache after it.

    Attributes:
        lengths: (B,) int64, number of stored positions of each sequence.
    """

    def __init__(self, cache: KVCache) -> None:
        self._capacity, self._device = cache.capacity, cache.device
        self.keys, self.values = cache.keys, cache.values
        self.lengths = torch.zeros(len(cache.lengths), dtype=torch.long, device=cache.device)

    def positions(self, new: int) -> Tensor:
        return self.lengths.unsqueeze(1) + torch.arange(new, device=self._device)

    def mask(self, new: int) -> Tensor:
        return mask_after(self.positions(new), self._capacity)

    def _append(self, memory: Store, layer: int, x: Tensor) -> Tensor:
        memory.write_ragged(layer, self.positions(x.size(2)), x)
        return memory.read(layer, self._capacity, x.dtype)
