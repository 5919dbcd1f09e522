"""A key/value cache: the keys and values of the positions a model has seen, so that each is computed once."""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gpt.cache.stores import KV_DTYPES, build_store
from gpt.config import ModelConfig
from gpt.errors import InputError


class KVCache:
    """A preallocated cache for a batch of sequences, which may have different lengths.

    `GPT.forward` appends the positions of its tokens to it. To prefill sequences of different lengths, pad
    them at the end, run the model, and `truncate` to the true lengths: what lies past the length of a
    sequence is never read, and is overwritten by what comes next.

    Attributes:
        lengths: number of stored positions of each sequence.
        capacity: most positions of a sequence.
        keys: store of all layers' keys.
        values: store of all layers' values.
        device: where its tensors live.

    Args:
        config: the model's architecture.
        batch: sequences B.
        capacity: None: `block_size`.
        kv_dtype: fp32, bf16, fp16 or int8.
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
        self.keys, self.values = (build_store(config, batch, self.capacity, kv_dtype, self.device) for _ in "kv")

    @property
    def nbytes(self) -> int:
        """Return the bytes of all keys and values, allocated from the start."""
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
        """Return None for plain causal attention, else the mask (B, 1, T, S): keys up to each query's position."""
        return None if self._is_uniform else mask_after(self.positions(new), max(self.lengths) + new)

    def layer(self, index: int) -> "LayerView":
        """Return the keys and values of one block."""
        return LayerView(self.append, index)

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store new keys and values (B, K, T, D) of a layer; return all stored so far, (B, K, S, D)."""
        longest, new = max(self.lengths), k.size(2)
        for store, x in ((self.keys, k), (self.values, v)):
            if self._is_uniform:
                store.write(layer, longest, x)
            else:
                store.write_ragged(layer, self.positions(new), x)
        total = longest + new
        return self.keys.read(layer, total, k.dtype), self.values.read(layer, total, v.dtype)

    def advance(self, new: int) -> None:
        """Count `new` more positions in every sequence."""
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
        self.keys.assign(rows, other.keys, longest)
        self.values.assign(rows, other.values, longest)
        for index, length in zip(indices, other.lengths, strict=True):
            self.lengths[index] = length

    @property
    def _is_uniform(self) -> bool:
        return len(set(self.lengths)) == 1


class LayerView:
    """One layer of a cache, as attention sees it."""

    def __init__(self, append: Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]], index: int) -> None:
        self._append, self._index = append, index

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store new keys and values (B, K, T, D); return those to attend to, (B, K, S, D)."""
        return self._append(self._index, k, v)


def mask_after(positions: Tensor, keys: int) -> Tensor:
    """Return the mask (B, 1, T, S) of queries at positions (B, T): each attends to the keys up to its own."""
    return torch.arange(keys, device=positions.device) <= positions[:, None, :, None]


def cache_bytes(config: ModelConfig, batch: int, capacity: int, kv_dtype: str) -> int:
    """Return the bytes of a cache without allocating it."""
    vectors = 2 * config.n_layer * batch * config.kv_heads * capacity  # keys and values
    scale = torch.float16.itemsize if kv_dtype == "int8" else 0
    return vectors * (config.head_dim * KV_DTYPES[kv_dtype].itemsize + scale)
