"""Keys and values at fixed addresses: a slot for each sequence of a batch, a whole window long.

A CUDA graph reads and writes the memory that it was captured with, but the blocks of a sequence
change. So the keys and values of a sequence are copied here while it decodes
(`gpt.generation.graph_runner`).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gpt.config import ModelConfig
from gpt.generation.paged_store import PagedStore
from gpt.model.attention import Cache
from gpt.system.device import to_device

LARGEST_BATCH = 64
"""Sequences of the largest part; more of them are computed in parts, one after the other."""


class Part(NamedTuple):
    """Neighboring slots of the static cache, which one pass of the model computes."""

    first: int
    batch: int

    @property
    def slots(self) -> slice:
        return slice(self.first, self.first + self.batch)


def parts_of(sequences: int) -> list[Part]:
    """Divide a number of sequences into parts, of which the last one may have empty slots.

    The batch of a part is a power of two, so that few shapes, and few CUDA graphs, are enough.
    """
    parts = []
    for first in range(0, sequences, LARGEST_BATCH):
        needed = min(sequences - first, LARGEST_BATCH)
        next_power_of_two = 2 ** math.ceil(math.log2(needed))
        parts.append(Part(first, batch=next_power_of_two))
    return parts


class StoredRange(NamedTuple):
    """Positions of a sequence: in its slot, and in its blocks.

    Attributes:
        begin: its first position.
        end: the position after its last one.
    """

    slot: int
    blocks: Sequence[int]
    begin: int
    end: int


class StaticCache:
    """The memory of a number of slots.

    Attributes:
        keys: (L, slots, K, S, D), where S is the model's window.
        values: likewise.
    """

    def __init__(self, config: ModelConfig, slots: int, store: PagedStore) -> None:
        shape = (config.n_layer, slots, config.kv_heads, config.block_size, config.head_dim)
        self._store = store
        # Zeros, since new memory may hold NaN, which no mask of attention would remove.
        self.keys = torch.zeros(shape, dtype=store.keys.dtype, device=store.device)
        self.values = torch.zeros_like(self.keys)

    def copy_in(self, stored: StoredRange) -> None:
        """Copy the positions of a sequence from its blocks into its slot, and clear the rest.

        The rest may hold NaN of another sequence, which no mask of attention would remove.
        """
        index = to_device(torch.tensor(self._places(stored), dtype=torch.int64), self._store.device)
        sources = (self._store.keys, self._store.values)
        for memory, source in zip((self.keys, self.values), sources, strict=True):
            slot = memory[:, stored.slot]  # (L, K, S, D)
            slot[:, :, stored.begin : stored.end] = source[:, :, index]
            slot[:, :, stored.end :] = 0.0

    def copy_out(self, ranges: Sequence[StoredRange]) -> None:
        """Copy positions of sequences from their slots into their blocks.

        Other sequences may share the blocks, or find them again later.
        """
        slots: list[int] = []
        positions: list[int] = []
        places: list[int] = []
        for stored in ranges:
            slots += [stored.slot] * (stored.end - stored.begin)
            positions += range(stored.begin, stored.end)
            places += self._places(stored)
        # All three go to the device in one copy.
        indices = to_device(torch.tensor([slots, positions, places]), self._store.device)
        slot, position, place = indices.unbind()  # (N,) each
        targets = (self._store.keys, self._store.values)
        for memory, target in zip((self.keys, self.values), targets, strict=True):
            # Indices on both sides of a slice put their dimension first.
            new = memory[:, slot, :, position]  # (N, L, K, D)
            target[:, :, place] = new.permute(1, 2, 0, 3)

    def _places(self, stored: StoredRange) -> list[int]:
        """Return where each position lies in the memory of a layer of the store."""
        size = self._store.block_size
        places = []
        for position in range(stored.begin, stored.end):
            index, offset = divmod(position, size)
            first_place = stored.blocks[index] * size  # of the block
            places.append(first_place + offset)
        return places


class StaticView(Cache):
    """The cache of a part, for one pass over one new token of each sequence.

    Args:
        positions: (B,), of the new tokens.
        dtype: of the queries, in which the mask is added to the scores.
    """

    def __init__(
        self, cache: StaticCache, part: Part, positions: Tensor, dtype: torch.dtype
    ) -> None:
        self._keys = cache.keys[:, part.slots]  # (L, B, K, S, D)
        self._values = cache.values[:, part.slots]
        self._positions = positions.unsqueeze(1)  # (B, 1)
        _, batch, heads, window, head_dim = self._keys.shape
        # A query attends to the keys up to its own position. The mask holds numbers to add to the
        # scores, since each layer would convert a boolean mask again.
        is_hidden = torch.arange(window, device=positions.device) > self._positions  # (B, S)
        mask = torch.zeros(is_hidden.shape, dtype=dtype, device=positions.device)
        self._mask = mask.masked_fill(is_hidden, -math.inf)[:, None, None]  # (B, 1, 1, S)
        # `scatter_` takes the position S for each number of the new keys and values.
        self._written = positions.view(-1, 1, 1, 1).expand(batch, heads, 1, head_dim)

    def positions(self, new: int) -> Tensor:
        return self._positions

    def mask(self, new: int) -> Tensor:
        return self._mask

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self._append(self._keys[layer], k), self._append(self._values[layer], v)

    def _append(self, memory: Tensor, x: Tensor) -> Tensor:
        """Store x (B, K, 1, D) in the slots of a layer; return all positions (B, K, S, D)."""
        memory.scatter_(2, self._written, x.to(memory.dtype))
        return memory.to(x.dtype)
