"""Keys and values in physical blocks, for models in PyTorch; `gpt.cache.paged` keeps track of the blocks."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gpt.cache.kv_cache import LayeredCache, mask_after
from gpt.config import ModelConfig


class PagedStore:
    """The memory of a number of physical blocks, each of `block_size` positions."""

    def __init__(
        self, config: ModelConfig, blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.blocks, self.block_size, self.device = blocks, block_size, device
        shape = (config.n_layer, blocks * block_size, config.kv_heads, config.head_dim)
        self.keys, self.values = (torch.zeros(shape, dtype=dtype, device=device) for _ in "kv")

    @property
    def block_bytes(self) -> int:
        return (self.keys.nbytes + self.values.nbytes) // self.blocks

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy blocks: the first of each pair becomes a copy of the second."""
        for target, source in copies:
            for part in (self.keys, self.values):
                blocks = part.view(len(part), self.blocks, self.block_size, *part.shape[2:])
                blocks[:, target] = blocks[:, source]


class PagedView(LayeredCache[Tensor]):
    """A cache of some sequences, for one pass over the next tokens of each; blocks are gathered for each layer.

    Args:
        store: the memory.
        tables: the blocks of each sequence, with room for the new tokens.
        stored: number of stored positions of each sequence.
        new: number of new tokens T.
    """

    def __init__(self, store: PagedStore, tables: Sequence[Sequence[int]], stored: Sequence[int], new: int) -> None:
        self.keys, self.values, size = store.keys, store.values, store.block_size
        longest = max(stored) + new
        width = -(-longest // size)
        blocks = torch.tensor([[*table[:width], *(0,) * (width - len(table))] for table in tables])
        slots = (blocks.unsqueeze(2) * size + torch.arange(size)).flatten(1)[:, :longest]
        lengths = torch.tensor(stored).unsqueeze(1)  # (B, 1)
        positions = lengths + torch.arange(new)
        self._slots = slots.to(store.device)  # (B, S)
        self._positions = positions.to(store.device)  # (B, T)
        self._written = slots.gather(1, positions).flatten().to(store.device)
        self._hidden = (torch.arange(longest) >= lengths + new)[:, :, None, None].to(store.device)

    def positions(self, new: int) -> Tensor:
        assert new == self._positions.size(1)
        return self._positions

    def mask(self, new: int) -> Tensor:
        return mask_after(self.positions(new), self._slots.size(1))

    def _append(self, memory: Tensor, layer: int, x: Tensor) -> Tensor:
        stored = memory[layer]
        stored[self._written] = x.transpose(1, 2).flatten(0, 1).to(stored.dtype)
        found = stored[self._slots].masked_fill(self._hidden, 0.0)  # other sequences' values there may be NaN
        return found.transpose(1, 2).to(x.dtype)
