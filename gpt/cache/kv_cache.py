"""A key/value cache: the keys and values of the positions a model has seen, so that each is computed once."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from gpt.cache.stores import KV_DTYPES, Store
from gpt.config import ModelConfig
from gpt.errors import InputError

Memory = TypeVar("Memory")


class LayeredCache(ABC, Generic[Memory]):
    """What a model sees of a cache, wherever that keeps its vectors.

    Attributes:
        keys: of all layers.
        values: of all layers.
    """

    keys: Memory
    values: Memory

    @abstractmethod
    def positions(self, new: int) -> Tensor:
        """Return the positions of the next `new` tokens: (T,), or (B, T) where sequences have different lengths."""

    @abstractmethod
    def mask(self, new: int) -> Tensor | None:
        """Return the mask (B, 1, T, S): keys up to each query's position; None for plain causal attention."""

    @abstractmethod
    def _append(self, memory: Memory, layer: int, x: Tensor) -> Tensor:
        """Store x (B, K, T, D) at the next positions of a layer; return what to attend to, (B, K, S, D)."""

    def layer(self, index: int) -> "LayerView":
        return LayerView(self, index)

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store new keys and values (B, K, T, D) of a layer; return those to attend to, (B, K, S, D)."""
        return self._append(self.keys, layer, k), self._append(self.values, layer, v)

    def advance(self, new: int) -> None:
        """Count `new` more positions, if the cache does that itself."""


class LayerView:
    """One layer of a cache, as a block sees it: `append` of that layer."""

    def __init__(self, cache: LayeredCache[Any], index: int) -> None:
        self._cache, self._index = cache, index

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self._cache.append(self._index, k, v)


class KVCache(LayeredCache[Store]):
    """A preallocated cache for a batch of sequences, which may have different lengths.

    `GPT.forward` appends the positions of its tokens to it. To prefill sequences of different lengths, pad
    them at the end, run the model, and `truncate` to the true lengths: what lies past the length of a
    sequence is never read, and is overwritten by what comes next.

    Attributes:
        lengths: number of stored positions of each sequence.

    Args:
        config: the model's architecture.
        batch: sequences B.
        capacity: most positions of a sequence; None: `block_size`.
        kv_dtype: one of `KV_DTYPES`.
        device: where its tensors live.

    Raises:
        InputError: `capacity` is not between 1 and `block_size`.
    """

    _ragged: dict[tuple[int, ...], Tensor]
    """The latest positions of sequences of different lengths, by lengths and number of new tokens."""

    def __init__(
        self,
        config: ModelConfig,
        batch: int = 1,
        capacity: int | None = None,
        kv_dtype: str = "fp32",
        device: torch.device | str = "cpu",
    ) -> None:
        self.capacity = config.block_size if capacity is None else capacity
        if not 1 <= self.capacity <= config.block_size:
            raise InputError(f"a cache holds 1 to block_size {config.block_size} positions, not {self.capacity}")
        self.lengths, self._ragged = [0] * batch, {}
        self.device = torch.device(device)
        heads, length = (config.n_layer, batch, config.kv_heads), self.capacity
        self.keys, self.values = (Store((*heads, length, config.head_dim), kv_dtype, self.device) for _ in "kv")

    @property
    def nbytes(self) -> int:
        """Return the bytes of all that is stored, allocated from the start."""
        return self.keys.nbytes + self.values.nbytes

    def positions(self, new: int) -> Tensor:
        """Return the positions of the next `new` tokens: (T,), or (B, T) where sequences have different lengths.

        Raises:
            InputError: they do not fit.
        """
        longest = max(self.lengths)
        if longest + new > self.capacity:
            raise InputError(f"{new} tokens after {longest} do not fit into a cache of {self.capacity} positions")
        if self._is_uniform:
            return torch.arange(new, device=self.device) + longest
        asked = (new, *self.lengths)
        if asked not in self._ragged:  # every layer asks, but the lengths are copied to the device once
            lengths = torch.tensor(self.lengths).to(self.device, non_blocking=True)
            self._ragged = {asked: lengths.unsqueeze(1) + torch.arange(new, device=self.device)}
        return self._ragged[asked]

    def mask(self, new: int) -> Tensor | None:
        return None if self._is_uniform else mask_after(self.positions(new), max(self.lengths) + new)

    def _append(self, memory: Store, layer: int, x: Tensor) -> Tensor:
        longest, new = max(self.lengths), x.size(2)
        if self._is_uniform:
            memory.write(layer, longest, x)
        else:
            memory.write_ragged(layer, self.positions(new), x)
        return memory.read(layer, longest + new, x.dtype)

    def advance(self, new: int) -> None:
        self.lengths = [length + new for length in self.lengths]

    def truncate(self, lengths: int | Sequence[int]) -> None:
        """Forget all but the first positions of every sequence: one length for all, or one each."""
        wanted = [lengths] * len(self.lengths) if isinstance(lengths, int) else list(lengths)
        assert len(wanted) == len(self.lengths)
        assert all(0 <= new <= old for new, old in zip(wanted, self.lengths, strict=True))
        self.lengths = wanted

    def select(self, indices: Sequence[int]) -> "KVCache":
        """Return a cache whose sequence i is `indices[i]` of this one: to drop, reorder or duplicate sequences."""
        chosen = copy.copy(self)
        chosen.lengths, chosen._ragged = [self.lengths[index] for index in indices], {}
        rows, longest = torch.tensor(indices, device=self.device), max(chosen.lengths)
        chosen.keys, chosen.values = (store.select(rows, longest) for store in (self.keys, self.values))
        return chosen

    def assign(self, indices: Sequence[int], other: "KVCache") -> None:
        """Overwrite sequence `indices[i]` by sequence i of another cache of the same model and type."""
        rows, longest = torch.tensor(indices, device=self.device), max(other.lengths)
        for store, source in ((self.keys, other.keys), (self.values, other.values)):
            store.assign(rows, source, longest)
        for index, length in zip(indices, other.lengths, strict=True):
            self.lengths[index] = length

    @property
    def _is_uniform(self) -> bool:
        return len(set(self.lengths)) == 1


def mask_after(positions: Tensor, keys: int) -> Tensor:
    """Return the mask (B, 1, T, S) of queries at positions (B, T): each attends to the keys up to its own."""
    return torch.arange(keys, device=positions.device) <= positions[:, None, :, None]


def cache_bytes(config: ModelConfig, batch: int, capacity: int, kv_dtype: str) -> int:
    """Return the bytes of a cache without allocating it."""
    positions, size = config.n_layer * batch * capacity, KV_DTYPES[kv_dtype].itemsize
    scale = torch.float16.itemsize if kv_dtype == "int8" else 0
    return positions * 2 * config.kv_heads * (config.head_dim * size + scale)
