"""Keys and values in physical blocks, for models in PyTorch; `gpt.generation.paged` keeps track of the blocks."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gpt.config import ModelConfig
from gpt.model.attention import Cache
from gpt.system.device import to_device

KV_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Types that a cache in PyTorch can hold, by name."""


class PagedStore:
    """The memory of a number of physical blocks, each of `block_size` positions."""

    def __init__(
        self, config: ModelConfig, blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.block_size, self.device = block_size, device
        shape = (config.n_layer, config.kv_heads, blocks * block_size, config.head_dim)
        self.keys, self.values = (torch.zeros(shape, dtype=dtype, device=device) for _ in "kv")

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy blocks: the first of each pair becomes a copy of the second."""
        for target, source in copies:
            for memory in (self.keys, self.values):
                blocks = memory.view(*memory.shape[:2], -1, self.block_size, memory.size(3))
                blocks[:, :, target] = blocks[:, :, source]


class PagedView(Cache):
    """A cache of some sequences, for one pass over the `new` next tokens of each; blocks are gathered for each layer.

    Args:
        tables: the blocks of each sequence, with room for the new tokens.
        stored: number of stored positions of each sequence.
    """

    def __init__(self, store: PagedStore, tables: Sequence[Sequence[int]], stored: Sequence[int], new: int) -> None:
        self._store, size, longest = store, store.block_size, max(stored) + new
        width = -(-longest // size)
        self._blocks: Tensor | None = None
        self._hidden: Tensor | None = None
        self._mask: Tensor | None = None
        first = tables[0][0]
        if len(tables) == 1 and all(block == first + index for index, block in enumerate(tables[0][:width])):
            # one sequence in neighboring blocks is read where it is
            self._begin, self._new, self._end = (first * size + place for place in (0, stored[0], longest))
        else:
            blocks = torch.tensor([[*table[:width], *(0,) * (width - len(table))] for table in tables])
            slots = (blocks.unsqueeze(2) * size + torch.arange(size)).flatten(1)  # (B, blocks * size)
            positions = torch.tensor(stored).unsqueeze(1) + torch.arange(new)  # (B, T)
            self._written = to_device(slots.gather(1, positions).flatten(), store.device)
            self._blocks, self._longest = to_device(blocks.flatten(), store.device), longest
        if min(stored) == max(stored):
            self._positions = torch.arange(stored[0], longest, device=store.device)
        else:
            self._positions = to_device(positions, store.device)
            self._mask = torch.arange(longest, device=store.device) <= self._positions[:, None, :, None]
            self._hidden = ~self._mask[:, :, -1:].transpose(2, 3)  # (B, 1, S, 1)

    def positions(self, new: int) -> Tensor:
        return self._positions

    def mask(self, new: int) -> Tensor | None:
        return self._mask

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self._append(self._store.keys[layer], k), self._append(self._store.values[layer], v)

    def _append(self, memory: Tensor, x: Tensor) -> Tensor:
        if self._blocks is None:
            memory[:, self._new : self._end] = x[0]
            return memory[None, :, self._begin : self._end].to(x.dtype)
        memory[:, self._written] = x.transpose(0, 1).flatten(1, 2).to(memory.dtype)
        blocks = memory.view(len(memory), -1, self._store.block_size * x.size(3)).index_select(1, self._blocks)
        found = blocks.view(len(memory), len(x), -1, x.size(3))[:, :, : self._longest].transpose(0, 1)
        if self._hidden is not None:
            found = found.masked_fill(self._hidden, 0.0)  # other sequences' values there may be NaN
        return found.to(x.dtype)
