"""Storage of keys, values or other vectors: floats of some type, or int8 with a scale per head and position."""

import copy
from typing import Self

import torch
from torch import Tensor

KV_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.int8}
"""Types that a cache can hold, by name."""


class Store:
    """Keys, or values, of all layers and sequences: (L, B, K, S, D), preallocated.

    Integers are in [-127, 127], times a scale: the largest magnitude of each head's vector over 127.
    """

    def __init__(self, shape: tuple[int, ...], kv_dtype: str, device: torch.device) -> None:
        self.data = torch.zeros(shape, dtype=KV_DTYPES[kv_dtype], device=device)
        self.scales = Store((*shape[:-1], 1), "fp16", device) if kv_dtype == "int8" else None

    @property
    def nbytes(self) -> int:
        return self.data.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def write(self, layer: int, start: int, x: Tensor) -> None:
        """Store x (B, K, T, D) at positions start to start + T of every sequence."""
        x, scales = (x, None) if self.scales is None else _quantize(x)
        self.data[layer, :, :, start : start + x.size(2)] = x
        if self.scales is not None and scales is not None:
            self.scales.write(layer, start, scales)

    def write_ragged(self, layer: int, positions: Tensor, x: Tensor) -> None:
        """Store x (B, K, T, D) at positions (B, T), those of each sequence."""
        x, scales = (x, None) if self.scales is None else _quantize(x)
        rows = torch.arange(x.size(0), device=x.device).unsqueeze(1)  # (B, 1)
        self.data[layer].transpose(1, 2)[rows, positions] = x.transpose(1, 2).to(self.data.dtype)
        if self.scales is not None and scales is not None:
            self.scales.write_ragged(layer, positions, scales)

    def read(self, layer: int, length: int, dtype: torch.dtype) -> Tensor:
        """Return the first `length` positions, (B, K, length, D), a view of floats that have this type.

        Positions never written are undefined.
        """
        found = self.data[layer, :, :, :length].to(dtype)
        return found if self.scales is None else found * self.scales.read(layer, length, dtype)

    def select(self, rows: Tensor, length: int) -> Self:
        """Return a store whose sequence i is `rows[i]` of this one, up to `length` positions."""
        layers, _, *rest = self.data.shape
        chosen = copy.copy(self)
        chosen.data = self.data.new_zeros(layers, len(rows), *rest)
        chosen.data[:, :, :, :length] = self.data[:, rows, :, :length]
        chosen.scales = None if self.scales is None else self.scales.select(rows, length)
        return chosen

    def assign(self, rows: Tensor, other: Self, length: int) -> None:
        """Overwrite sequence `rows[i]` by sequence i of another store of the same kind, up to `length` positions."""
        self.data[:, rows, :, :length] = other.data[:, :, :, :length]
        if self.scales is not None and other.scales is not None:
            self.scales.assign(rows, other.scales, length)


def _quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return integers, and scales (..., 1) in float16, rounded before the division."""
    scales = (x.abs().amax(dim=-1, keepdim=True).float() / 127).clamp(min=1e-6).half()
    return (x.float() / scales.float()).round().clamp(-127, 127).to(torch.int8), scales
