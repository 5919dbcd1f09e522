"""How fast a machine could decode: the roofline of one step (Williams et al. 2009, doi 10.1145/1498765.1498785)."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpt.accounting.flops import decode_flops
from gpt.accounting.parameters import count_parameters
from gpt.cache import KV_DTYPES
from gpt.cache.kv_cache import cache_bytes
from gpt.config import ModelConfig


@dataclass(frozen=True)
class Machine:
    """The peak rates of a machine.

    Attributes:
        bandwidth: bytes/s read from memory.
        matmul_rate: FLOP/s of matmuls.
    """

    bandwidth: float
    matmul_rate: float

    @property
    def ridge(self) -> float:
        """Return the FLOPs per byte from which arithmetic is the limit, and no longer memory."""
        return self.matmul_rate / self.bandwidth


@dataclass(frozen=True)
class DecodeBound:
    """Least time of one decode step, one token for each row.

    Attributes:
        batch: rows B.
        weight_bytes: read once for all rows.
        cache_bytes: keys and values of all rows.
        flops: of all rows.
        machine: on which.
    """

    batch: int
    weight_bytes: int
    cache_bytes: int
    flops: int
    machine: Machine

    @property
    def intensity(self) -> float:
        """Return the arithmetic intensity: FLOPs per byte read."""
        return self.flops / (self.weight_bytes + self.cache_bytes)

    @property
    def limit(self) -> str:
        """Return what binds: memory or arithmetic."""
        return "memory" if self.intensity < self.machine.ridge else "arithmetic"

    @property
    def seconds(self) -> float:
        """Return the slower of reading and computing, as if each hid the other."""
        reading = (self.weight_bytes + self.cache_bytes) / self.machine.bandwidth
        return max(reading, self.flops / self.machine.matmul_rate)

    @property
    def tokens_per_second(self) -> float:
        """Return the throughput of the whole batch."""
        return self.batch / self.seconds


def weight_bytes(config: ModelConfig, kind: str) -> int:
    """Return the bytes of weights that a decode step reads, in fp32, bf16 or fp16."""
    return count_parameters(config).read_per_token * KV_DTYPES[kind].itemsize


def decode_bounds(
    config: ModelConfig, batches: Sequence[int], keys: int, kind: str, machine: Machine
) -> list[DecodeBound]:
    """Compute the bounds of decode steps with `keys` positions in each row, for several batches.

    Args:
        config: with `vocab_size` set.
        batches: rows B of each.
        keys: positions S of each row, the new one included.
        kind: type of weights and cache: fp32, bf16 or fp16.
        machine: on which.
    """
    weights = weight_bytes(config, kind)
    return [
        DecodeBound(batch, weights, cache_bytes(config, batch, keys, kind), decode_flops(config, batch, keys), machine)
        for batch in batches
    ]
