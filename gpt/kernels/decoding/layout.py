"""The memory layout of a matrix in the engine of `src/decoding`."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt.cache.paged import BLOCK
from gpt.kernels.contract import Kind

DTYPES = {Kind.FLOAT32: torch.float32, Kind.BFLOAT16: torch.bfloat16}
"""Element types in memory, by kind; those of integers are int8."""


@dataclass(frozen=True)
class Matrix:
    """A linear layer, laid out in blocks of 64 outputs; a matrix without outputs stands for none.

    Attributes:
        weights: (outputs / 64, inputs, 64); for int4 (outputs / 64, inputs / 2, 64), two in a byte; for int8 in tiles
            (outputs / 64, inputs / 64, 4, 16, 16, 4), see `in_tiles`.
        scales: (outputs / 64, inputs / group, 64) float32, factors of the weights; None: 1.
        bias: (outputs,) float32, padded, or None.
        outputs: number of outputs, without padding.
        group: number of inputs that share a scale.
    """

    weights: Tensor
    scales: Tensor | None
    bias: Tensor | None
    kind: Kind
    outputs: int
    inputs: int
    group: int

    @property
    def weights_dtype(self) -> torch.dtype:
        return DTYPES.get(self.kind, torch.int8)

    @classmethod
    def from_floats(cls, weight: Tensor, bias: Tensor | None = None) -> "Matrix":
        """Lay out (outputs, inputs) float32 or bfloat16."""
        outputs, inputs = weight.shape
        kind = Kind.BFLOAT16 if weight.dtype == torch.bfloat16 else Kind.FLOAT32
        return cls(_blocks(weight), None, padded(bias), kind, outputs, inputs, max(inputs, 1))

    @classmethod
    def from_integers(cls, integers: Tensor, scales: Tensor, bias: Tensor | None = None, bits: int = 8) -> "Matrix":
        """Lay out (outputs, inputs) int8 with scales (outputs, inputs / group); for 4 bits -8 to 7, inputs even."""
        outputs, inputs = integers.shape
        blocks, kind = _blocks(integers), Kind.INT8
        if bits == 4:
            blocks, kind = (blocks[:, 0::2] & 15 | blocks[:, 1::2] << 4).contiguous(), Kind.INT4
        return cls(blocks, _blocks(scales.float()), padded(bias), kind, outputs, inputs, inputs // scales.size(1))

    def in_tiles(self) -> "Matrix":
        """Return the matrix as the AMX tile unit reads it, if it is int8 with one scale per output.

        A tile holds 64 inputs of 16 outputs, four inputs side by side; 64 outputs take four tiles.
        """
        if self.kind != Kind.INT8 or self.group != self.inputs:
            return self
        padded = F.pad(self.weights, (0, 0, 0, -self.inputs % 64))
        tiles = padded.view(len(padded), -1, 16, 4, 4, 16).permute(0, 1, 4, 2, 5, 3)
        return replace(self, weights=tiles.contiguous(), kind=Kind.INT8_TILES)


def _blocks(weight: Tensor) -> Tensor:
    """Return (outputs, inputs) as (outputs / 64, inputs, 64), padded with zeros."""
    weight = F.pad(weight.detach(), (0, 0, 0, -weight.size(0) % BLOCK))
    return weight.view(-1, BLOCK, weight.size(1)).transpose(1, 2).contiguous()


def padded(vector: Tensor | None) -> Tensor | None:
    """Return a copy in float32, whose last dimension is padded with zeros to a multiple of 64."""
    return None if vector is None else F.pad(vector.detach().float(), (0, -vector.size(-1) % BLOCK)).clone()
