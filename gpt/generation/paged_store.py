"""Keys and values in physical blocks, for models in PyTorch.

`gpt.generation.paged` keeps track of which sequence has which blocks; here is their memory.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gpt.config import ModelConfig
from gpt.model.attention import Cache
from gpt.system.device import to_device


class PagedStore:
    """The memory of a number of physical blocks, each of `block_size` positions.

    Attributes:
        keys: (L, K, blocks * block_size, D).
        values: likewise.
    """

    def __init__(
        self,
        config: ModelConfig,
        blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.block_size = block_size
        self.device = device
        shape = (config.n_layer, config.kv_heads, blocks * block_size, config.head_dim)
        # Zeros, since new memory may hold NaN, which no mask of attention would remove.
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros_like(self.keys)

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy blocks, given as pairs of a target and a source."""
        for target, source in copies:
            for memory in (self.keys, self.values):
                # (L, K, blocks, block_size, D)
                blocks = memory.view(*memory.shape[:2], -1, self.block_size, memory.size(3))
                blocks[:, :, target] = blocks[:, :, source]

    def view(self, tables: Sequence[Sequence[int]], stored: Sequence[int], new: int) -> Cache:
        """Return a cache of some sequences, for one pass over the `new` next tokens of each.

        Args:
            tables: the blocks of each sequence, with room for the new tokens.
            stored: number of stored positions of each sequence.
        """
        if len(tables) == 1:
            num_used = -(-(stored[0] + new) // self.block_size)  # rounded up
            used = list(tables[0][:num_used])
            are_neighbors = used == list(range(used[0], used[0] + num_used))
            if are_neighbors:
                return ContiguousView(self, used[0], stored[0], new)
        return GatheredView(self, tables, stored, new)


class ContiguousView(Cache):
    """The cache of one sequence in neighboring blocks: keys and values are read where they lie.

    Args:
        first_block: the first block of the sequence.
        stored: number of its stored positions.
        new: number of positions to append.
    """

    def __init__(self, store: PagedStore, first_block: int, stored: int, new: int) -> None:
        self._store = store
        # These are indices into the positions of a layer's memory.
        self._begin = first_block * store.block_size
        self._new = self._begin + stored
        self._end = self._new + new
        self._positions = torch.arange(stored, stored + new, device=store.device)

    def positions(self, new: int) -> Tensor:
        return self._positions

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self._append(self._store.keys[layer], k), self._append(self._store.values[layer], v)

    def _append(self, memory: Tensor, x: Tensor) -> Tensor:
        """Store x (1, K, T, D) in the memory of a layer; return all positions (1, K, S, D)."""
        memory[:, self._new : self._end] = x[0]
        return memory[None, :, self._begin : self._end].to(x.dtype)


class GatheredView(Cache):
    """The cache of several sequences, or of scattered blocks: blocks are gathered for each layer.

    Args:
        tables: the blocks of each sequence, in order.
        stored: how many positions of each sequence are stored, (B,).
        new: T, the number of positions to append to each sequence.
    """

    def __init__(
        self,
        store: PagedStore,
        tables: Sequence[Sequence[int]],
        stored: Sequence[int],
        new: int,
    ) -> None:
        size = store.block_size
        self._store = store
        self._longest = max(stored) + new
        width = -(-self._longest // size)  # blocks of the longest sequence, rounded up
        # Shorter tables are filled up with block 0, whose positions the mask hides.
        padded = []
        for table in tables:
            padding = [0] * (width - len(table))
            padded.append([*table[:width], *padding])
        blocks = torch.tensor(padded)  # (B, width)
        self._blocks = to_device(blocks.flatten(), store.device)  # (B * width,)
        # A slot is a place for one position in the memory of a layer.
        first_slots = blocks.unsqueeze(2) * size  # of each block, (B, width, 1)
        slots = (first_slots + torch.arange(size)).flatten(1)  # (B, width * size)
        positions = torch.tensor(stored).unsqueeze(1) + torch.arange(new)  # (B, T)
        self._written = to_device(slots.gather(1, positions).flatten(), store.device)  # (B * T,)
        self._mask: Tensor | None = None
        self._hidden: Tensor | None = None
        if min(stored) == max(stored):
            # All sequences have the same length, and need no mask: the model's attention is causal
            # by itself, with the last query at the last key. For one query that is faster.
            self._positions = torch.arange(stored[0], self._longest, device=store.device)  # (T,)
        else:
            self._positions = to_device(positions, store.device)  # (B, T)
            # A query attends to the keys up to its own position.
            keys = torch.arange(self._longest, device=store.device)  # (S,)
            self._mask = keys <= self._positions[:, None, :, None]  # (B, 1, T, S)
            # Keys that the last query of a sequence does not see belong to other sequences. They
            # are replaced by 0: a weight of 0 times a value that is not finite would be NaN.
            self._hidden = ~self._mask[:, :, -1:].transpose(2, 3)  # (B, 1, S, 1)

    def positions(self, new: int) -> Tensor:
        return self._positions

    def mask(self, new: int) -> Tensor | None:
        return self._mask

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self._append(self._store.keys[layer], k), self._append(self._store.values[layer], v)

    def _append(self, memory: Tensor, x: Tensor) -> Tensor:
        """Store x (B, K, T, D) in the memory of a layer; return all positions (B, K, S, D)."""
        batch, heads, _, head_dim = x.shape
        new = x.transpose(0, 1).flatten(1, 2)  # (K, B * T, D)
        memory[:, self._written] = new.to(memory.dtype)
        # Whole blocks are copied, which is faster than single positions.
        block_width = self._store.block_size * head_dim
        by_block = memory.view(heads, -1, block_width)  # (K, blocks, block_width)
        gathered = by_block.index_select(1, self._blocks)  # (K, B * width, block_width)
        by_sequence = gathered.view(heads, batch, -1, head_dim)  # (K, B, width * size, D)
        found = by_sequence[:, :, : self._longest].transpose(0, 1)  # (B, K, S, D)
        if self._hidden is not None:
            # Hidden positions may hold NaN of other sequences, which a weight of 0 does not remove.
            found = found.masked_fill(self._hidden, 0.0)
        return found.to(x.dtype)
