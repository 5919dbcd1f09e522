"""Bound the speed of decoding by the roofline of one step (Williams et al. 2009, doi 10.1145/1498765.1498785)."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpt.accounting.flops import decode_flops
from gpt.accounting.parameters import count_parameters
from gpt.cache import KV_DTYPES
from gpt.cache.kv_cache import cache_bytes
from gpt.config import ModelConfig


@dataclass(frozen=True)
class Machine:
    """The peak rates of a machine."""

    bandwidth: float  # bytes/s read from memory
    matmul_rate: float  # FLOP/s of matmuls

    @property
    def ridge(self) -> float:
        """Return the arithmetic intensity, in FLOPs per byte, above which arithmetic is the limit and not memory."""
        return self.matmul_rate / self.bandwidth


@dataclass(frozen=True)
class DecodeBound:
    """The least time of one decode step, one token for each sequence."""

    batch: int  # sequences B
    weight_bytes: int  # bytes of weights, read once for all sequences
    cache_bytes: int  # bytes of the keys and values of all sequences
    flops: int
    machine: Machine

    @property
    def intensity(self) -> float:
        """Return the arithmetic intensity: FLOPs per byte read."""
        return self.flops / (self.weight_bytes + self.cache_bytes)

    @property
    def limit(self) -> str:
        return "memory" if self.intensity < self.machine.ridge else "arithmetic"

    @property
    def seconds(self) -> float:
        """Return the longer of the times for reading and for computing, which overlap."""
        reading = (self.weight_bytes + self.cache_bytes) / self.machine.bandwidth
        return max(reading, self.flops / self.machine.matmul_rate)

    @property
    def tokens_per_second(self) -> float:
        return self.batch / self.seconds


def weight_bytes(config: ModelConfig, kind: str) -> int:
    """Return the bytes of weights that a decode step reads, in fp32, bf16 or fp16."""
    return count_parameters(config).read_per_token * KV_DTYPES[kind].itemsize


def decode_bounds(
    config: ModelConfig, batches: Sequence[int], keys: int, kind: str, machine: Machine
) -> list[DecodeBound]:
    """Compute the bounds of decode steps with `keys` positions in each sequence, the new one included.

    One for each batch size; weights and cache are of one type: fp32, bf16 or fp16.
    """
    weights = weight_bytes(config, kind)
    return [
        DecodeBound(batch, weights, cache_bytes(config, batch, keys, kind), decode_flops(config, batch, keys), machine)
        for batch in batches
    ]
