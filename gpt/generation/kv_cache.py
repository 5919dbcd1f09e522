"""A key/value cache: the keys and values of the positions a model has seen, so that each is computed once."""

import torch
from torch import Tensor

from gpt.config import ModelConfig
from gpt.generation.paged_store import KV_DTYPES
from gpt.model.attention import Cache
from gpt.system.errors import InputError


class KVCache(Cache):
    """A preallocated cache for a batch of sequences of one length, to which `GPT.forward` appends its positions.

    `keys` and `values` are those of all layers, (L, B, K, S, D), of which `length` positions are stored.
    """

    def __init__(
        self, config: ModelConfig, batch: int = 1, kv_dtype: str = "fp32", device: torch.device | str = "cpu"
    ) -> None:
        shape = (config.n_layer, batch, config.kv_heads, config.block_size, config.head_dim)
        self.keys, self.values = (torch.zeros(shape, dtype=KV_DTYPES[kv_dtype], device=device) for _ in "kv")
        self.length = 0

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def positions(self, new: int) -> Tensor:
        if self.length + new > self.keys.size(3):
            raise InputError(
                f"{new} tokens after {self.length} do not fit into a cache of {self.keys.size(3)} positions"
            )
        return torch.arange(new, device=self.keys.device) + self.length

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self._append(self.keys, layer, k), self._append(self.values, layer, v)

    def _append(self, memory: Tensor, layer: int, x: Tensor) -> Tensor:
        """Store x (B, K, T, D) at the next positions; return all stored so far, (B, K, S, D)."""
        end = self.length + x.size(2)
        memory[layer, :, :, self.length : end] = x
        return memory[layer, :, :, :end].to(x.dtype)

    def advance(self, new: int) -> None:
        self.length += new

    def truncate(self, length: int) -> None:
        """Forget all but the first positions."""
        assert 0 <= length <= self.length
        self.length = length


def cache_bytes(config: ModelConfig, batch: int, capacity: int, kv_dtype: str) -> int:
    """Return the bytes of a cache without allocating it."""
    return 2 * config.n_layer * batch * capacity * config.kv_heads * config.head_dim * KV_DTYPES[kv_dtype].itemsize
