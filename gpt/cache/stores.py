"""Storage of keys, values or other vectors: floats of some type, or int8 with a scale per head and position."""

import copy
from typing import Protocol, Self

import torch
from torch import Tensor


class Store(Protocol):
    """Keys, or values, of all layers and sequences: (L, B, K, S, D), preallocated."""

    @property
    def nbytes(self) -> int:
        """Return the bytes it holds."""
        ...

    def write(self, layer: int, start: int, x: Tensor) -> None:
        """Store x (B, K, T, D) at positions start to start + T of every sequence."""
        ...

    def write_ragged(self, layer: int, positions: Tensor, x: Tensor) -> None:
        """Store x (B, K, T, D) at positions (B, T), those of each sequence."""
        ...

    def read(self, layer: int, length: int, dtype: torch.dtype) -> Tensor:
        """Return the first `length` positions, (B, K, length, D); positions never written are undefined."""
        ...

    def select(self, rows: Tensor, length: int) -> Self:
        """Return a store whose sequence i is `rows[i]` of this one, up to `length` positions."""
        ...

    def assign(self, rows: Tensor, other: Self, length: int) -> None:
        """Overwrite sequence `rows[i]` by sequence i of another store of the same kind, up to `length` positions."""
        ...


class FloatStore:
    """Floats of one type; reading in that type is a view."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self.data = torch.zeros(shape, dtype=dtype, device=device)

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def write(self, layer: int, start: int, x: Tensor) -> None:
        self.data[layer, :, :, start : start + x.size(2)] = x

    def write_ragged(self, layer: int, positions: Tensor, x: Tensor) -> None:
        rows = torch.arange(x.size(0), device=x.device).unsqueeze(1)  # (B, 1)
        self.data[layer].transpose(1, 2)[rows, positions] = x.transpose(1, 2).to(self.data.dtype)

    def read(self, layer: int, length: int, dtype: torch.dtype) -> Tensor:
        return self.data[layer, :, :, :length].to(dtype)

    def select(self, rows: Tensor, length: int) -> "FloatStore":
        layers, _, *rest = self.data.shape
        chosen = FloatStore((layers, len(rows), *rest), self.data.dtype, self.data.device)
        chosen.data[:, :, :, :length] = self.data[:, rows, :, :length]
        return chosen

    def assign(self, rows: Tensor, other: "FloatStore", length: int) -> None:
        self.data[:, rows, :, :length] = other.data[:, :, :, :length]


class Int8Store:
    """Integers in [-127, 127] times a scale: the largest magnitude of each head's vector over 127."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self.integers = FloatStore(shape, torch.int8, device)
        self.scales = FloatStore((*shape[:-1], 1), torch.float16, device)

    @property
    def nbytes(self) -> int:
        return self.integers.nbytes + self.scales.nbytes

    def write(self, layer: int, start: int, x: Tensor) -> None:
        integers, scales = _quantize(x)
        self.integers.write(layer, start, integers)
        self.scales.write(layer, start, scales)

    def write_ragged(self, layer: int, positions: Tensor, x: Tensor) -> None:
        integers, scales = _quantize(x)
        self.integers.write_ragged(layer, positions, integers)
        self.scales.write_ragged(layer, positions, scales)

    def read(self, layer: int, length: int, dtype: torch.dtype) -> Tensor:
        return self.integers.read(layer, length, dtype) * self.scales.read(layer, length, dtype)

    def select(self, rows: Tensor, length: int) -> "Int8Store":
        chosen = copy.copy(self)
        chosen.integers = self.integers.select(rows, length)
        chosen.scales = self.scales.select(rows, length)
        return chosen

    def assign(self, rows: Tensor, other: "Int8Store", length: int) -> None:
        self.integers.assign(rows, other.integers, length)
        self.scales.assign(rows, other.scales, length)


KV_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.int8}
"""Types that a cache can hold, by name."""


def build_store(shape: tuple[int, ...], kv_dtype: str, device: torch.device) -> Store:
    """Return an empty store of the shape (L, B, K, S, D)."""
    if kv_dtype == "int8":
        return Int8Store(shape, device)
    return FloatStore(shape, KV_DTYPES[kv_dtype], device)


def _quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return integers, and scales (..., 1) in float16, rounded before the division."""
    scales = (x.abs().amax(dim=-1, keepdim=True).float() / 127).clamp(min=1e-6).half()
    return (x.float() / scales.float()).round().clamp(-127, 127).to(torch.int8), scales
