"""Keys and values in physical blocks, for models in PyTorch; `gpt.cache.paged` keeps track of the blocks."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gpt.cache.kv_cache import LayerView, mask_after, windows
from gpt.config import ModelConfig


class PagedStore:
    """The memory of all blocks.

    Args:
        config: the model's architecture.
        blocks: number of physical blocks.
        block_size: positions in each.
        dtype: type of keys and values.
        device: where the tensors live.
    """

    def __init__(
        self, config: ModelConfig, blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.blocks, self.block_size, self.device = blocks, block_size, device
        shape = (config.n_layer, blocks * block_size, config.kv_heads, config.head_dim)
        self.keys, self.values = (torch.zeros(shape, dtype=dtype, device=device) for _ in "kv")
        inputs = (*shape[:2], 1, config.n_embd if config.mlp_conv is not None else 0)
        self.inputs = torch.zeros(inputs, dtype=dtype, device=device)

    @property
    def block_bytes(self) -> int:
        """Return the bytes of a physical block."""
        return sum(part.nbytes for part in (self.keys, self.values, self.inputs)) // self.blocks

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy blocks: the first of each pair becomes a copy of the second."""
        for target, source in copies:
            for part in (self.keys, self.values, self.inputs):
                blocks = part.view(len(part), self.blocks, self.block_size, *part.shape[2:])
                blocks[:, target] = blocks[:, source]

    def view(self, tables: Sequence[Sequence[int]], stored: Sequence[int], new: int) -> "PagedView":
        """Return a cache of some sequences, for a pass over the next `new` tokens of each.

        Args:
            tables: the blocks of each sequence, with room for the new tokens.
            stored: number of stored positions of each sequence.
            new: number of new tokens T.
        """
        return PagedView(self, tables, stored, new)


class PagedView:
    """The cache that a model sees in one pass over a batch; its blocks are gathered for each layer."""

    def __init__(self, store: PagedStore, tables: Sequence[Sequence[int]], stored: Sequence[int], new: int) -> None:
        self._store, size = store, store.block_size
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
        """Return the positions (B, T) of the next `new` tokens."""
        assert new == self._positions.size(1)
        return self._positions

    def mask(self, new: int) -> Tensor:
        """Return the mask (B, 1, T, S): keys up to each query's position."""
        return mask_after(self.positions(new), self._slots.size(1))

    def layer(self, index: int) -> LayerView:
        """Return what is stored of one block of the model."""
        return LayerView(self, index)

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store new keys and values (B, K, T, D) of a layer; return all of it (B, K, S, D), 0 past each length."""
        return self._append(self._store.keys[layer], k), self._append(self._store.values[layer], v)

    def extend(self, layer: int, x: Tensor, before: int) -> Tensor:
        """Store inputs x (B, T, C) of a layer's convolution; return them after the `before` ahead of them, else 0."""
        found = self._append(self._store.inputs[layer], x.unsqueeze(1)).squeeze(1)
        return windows(found, self._positions, before)

    def advance(self, new: int) -> None:
        """Do nothing: the block tables count."""

    def _append(self, stored: Tensor, x: Tensor) -> Tensor:
        stored[self._written] = x.transpose(1, 2).flatten(0, 1).to(stored.dtype)
        found = stored[self._slots].masked_fill(self._hidden, 0.0)  # other sequences' values there may be NaN
        return found.transpose(1, 2).to(x.dtype)
