"""Keys and values of the positions a model has seen, so that each is computed once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gpt.cache.stores import KV_DTYPES, Store, build_store
from gpt.config import ModelConfig
from gpt.errors import InputError


class KVCache:
    """A preallocated cache for a batch of rows, which may have different lengths.

    Passed to `GPT.forward`, which appends the positions of its tokens. To prefill rows of different
    lengths, pad them at the end, run the model, and `truncate` to the true lengths: what lies past a
    row's length is never looked at, and written over by what comes next.

    Attributes:
        lengths: positions stored, per row.
        capacity: most positions a row can have.
        keys: the store of all layers' keys.
        values: the same of values.
        device: where it lives.

    Args:
        config: the model's.
        batch: rows B.
        capacity: None: `block_size`.
        kv_dtype: fp32, bf16, fp16 or int8.
        device: where it lives.
    """

    _ragged: dict[tuple[int, ...], Tensor]
    """The last positions of rows of different lengths, by what was asked for."""

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
        self.lengths = [0] * batch
        self.device = torch.device(device)
        self._layers = config.n_layer
        self._set_stores(*(build_store(config, batch, self.capacity, kv_dtype, self.device) for _ in "kv"))

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values, all of it from the start."""
        return self.keys.nbytes + self.values.nbytes

    def positions(self, new: int) -> Tensor:
        """Positions of the next `new` tokens: (T,), or (B, T) where rows have different lengths.

        Raises:
            InputError: they do not fit.
        """
        longest = max(self.lengths)
        if longest + new > self.capacity:
            raise InputError(f"{new} tokens after {longest} do not fit into a cache of {self.capacity} positions")
        if self._is_uniform:
            return torch.arange(new, device=self.device) + longest
        asked = (new, *self.lengths)
        if asked not in self._ragged:  # every layer asks, and the lengths are to be copied once
            lengths = torch.tensor(self.lengths).to(self.device, non_blocking=True)
            self._ragged = {asked: lengths.unsqueeze(1) + torch.arange(new, device=self.device)}
        return self._ragged[asked]

    def mask(self, new: int) -> Tensor | None:
        """None where plain causal attention is right, else (B, 1, T, S): keys up to each query's position."""
        if self._is_uniform:
            return None
        keys = torch.arange(max(self.lengths) + new, device=self.device)
        return keys <= self.positions(new)[:, None, :, None]

    def layer(self, index: int) -> "LayerView":
        """The keys and values of one block."""
        return self._views[index]

    def advance(self, new: int) -> None:
        """Count `new` more positions in every row."""
        self.lengths = [length + new for length in self.lengths]

    def truncate(self, lengths: int | Sequence[int]) -> None:
        """Forget all but the first positions of every row: one length for all, or one each."""
        wanted = [lengths] * len(self.lengths) if isinstance(lengths, int) else list(lengths)
        assert len(wanted) == len(self.lengths)
        assert all(0 <= new <= old for new, old in zip(wanted, self.lengths, strict=True))
        self.lengths = wanted

    def select(self, rows: Sequence[int]) -> "KVCache":
        """A cache whose row i is row `rows[i]` of this one: to drop, reorder or multiply rows."""
        chosen = KVCache.__new__(KVCache)
        chosen.capacity, chosen.device, chosen._layers = self.capacity, self.device, self._layers
        chosen.lengths = [self.lengths[row] for row in rows]
        index, longest = torch.tensor(rows, device=self.device), max(chosen.lengths)
        chosen._set_stores(self.keys.select(index, longest), self.values.select(index, longest))
        return chosen

    def assign(self, rows: Sequence[int], other: "KVCache") -> None:
        """Overwrite row `rows[i]` by row i of another cache of the same model and type."""
        index = torch.tensor(rows, device=self.device)
        longest = max(other.lengths)
        self.keys.assign(index, other.keys, longest)
        self.values.assign(index, other.values, longest)
        for row, length in zip(rows, other.lengths, strict=True):
            self.lengths[row] = length

    @property
    def _is_uniform(self) -> bool:
        return len(set(self.lengths)) == 1

    def _set_stores(self, keys: Store, values: Store) -> None:
        self.keys, self.values = keys, values
        self._ragged = {}
        self._views = [LayerView(self, index) for index in range(self._layers)]

    def _append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        longest, new = max(self.lengths), k.size(2)
        for store, x in ((self.keys, k), (self.values, v)):
            if self._is_uniform:
                store.write(layer, longest, x)
            else:
                store.write_ragged(layer, self.positions(new), x)
        total = longest + new
        return self.keys.read(layer, total, k.dtype), self.values.read(layer, total, v.dtype)


class LayerView:
    """One layer of a cache, as attention sees it."""

    def __init__(self, cache: KVCache, index: int) -> None:
        self._cache, self._index = cache, index

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store new keys and values (B, K, T, D); return all so far, (B, K, S, D)."""
        return self._cache._append(self._index, k, v)


def cache_bytes(config: ModelConfig, batch: int, capacity: int, kv_dtype: str) -> int:
    """Bytes of a cache of that shape, without making it."""
    vectors = 2 * config.n_layer * batch * config.kv_heads * capacity  # keys and values
    scale = torch.float16.itemsize if kv_dtype == "int8" else 0
    return vectors * (config.head_dim * KV_DTYPES[kv_dtype].itemsize + scale)
