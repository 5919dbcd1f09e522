"""A key/value cache: keys and values of the positions a model has seen, so each is computed once.

This is the cache as plainly as it can be written, for a batch of sequences of one length. The
engine stores keys and values in blocks, see `gpt.generation.paged_store`.
"""

import torch
from torch import Tensor

from gpt.config import ModelConfig
from gpt.model.attention import Cache
from gpt.system.errors import InputError

KV_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Types of keys and values in PyTorch, by their names in options."""


class KVCache(Cache):
    """A preallocated cache to which `GPT.forward` appends the positions that it computes.

    Attributes:
        keys: the keys of all layers, (L, B, K, S, D); the first `length` of S positions are stored.
        values: likewise.
        length: number of stored positions.
    """

    def __init__(
        self,
        config: ModelConfig,
        batch: int = 1,
        kv_dtype: str = "fp32",
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (config.n_layer, batch, config.kv_heads, config.block_size, config.head_dim)
        self.keys = torch.zeros(shape, dtype=KV_DTYPES[kv_dtype], device=device)  # (L, B, K, S, D)
        self.values = torch.zeros_like(self.keys)
        self.length = 0

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def positions(self, new: int) -> Tensor:
        capacity = self.keys.size(3)
        if self.length + new > capacity:
            raise InputError(
                f"{new} tokens after {self.length} do not fit into a cache of {capacity} positions"
            )
        return torch.arange(new, device=self.keys.device) + self.length

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        end = self.length + k.size(2)
        self.keys[layer, :, :, self.length : end] = k  # (B, K, T, D)
        self.values[layer, :, :, self.length : end] = v
        all_keys = self.keys[layer, :, :, :end].to(k.dtype)  # (B, K, S, D)
        all_values = self.values[layer, :, :, :end].to(v.dtype)
        return all_keys, all_values

    def advance(self, new: int) -> None:
        # The model calls this after the last layer: all layers append at the same positions.
        self.length += new

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` positions."""
        assert 0 <= length <= self.length
        self.length = length


def cache_bytes(config: ModelConfig, batch: int, capacity: int, kv_dtype: str) -> int:
    """Return the bytes of a cache of `capacity` positions without allocating it."""
    values_per_position = config.n_layer * config.kv_heads * config.head_dim
    keys_and_values = 2 * values_per_position
    return keys_and_values * batch * capacity * KV_DTYPES[kv_dtype].itemsize
