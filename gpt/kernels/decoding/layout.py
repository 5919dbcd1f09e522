"""How a model's weights lie in memory for the engine of `src/decoding`."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt.config import ModelConfig

BLOCK = 64
"""Outputs of a matrix that lie side by side, as in model.h."""
KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
INT4 = 3
DTYPES = {**{kind: dtype for dtype, kind in KINDS.items()}, INT4: torch.int8}
"""Of the numbers in memory, by kind."""


@dataclass(frozen=True)
class Matrix:
    """A linear layer, laid out in blocks of outputs; a matrix without outputs stands for none.

    Attributes:
        weights: (outputs / 64, inputs, 64), or of int4 (outputs / 64, inputs / 2, 64), two in a byte.
        scales: (outputs / 64, inputs / group, 64) float32 that weights are multiplied by; None: 1.
        bias: (outputs,) float32, padded, or None.
        kind: of the weights.
        outputs: without padding.
        inputs: width of what it is multiplied with.
        group: inputs that share a scale.
    """

    weights: Tensor
    scales: Tensor | None
    bias: Tensor | None
    kind: int
    outputs: int
    inputs: int
    group: int

    @property
    def weights_dtype(self) -> torch.dtype:
        """Type of the numbers in memory."""
        return DTYPES[self.kind]

    @classmethod
    def from_floats(cls, weight: Tensor, bias: Tensor | None = None) -> "Matrix":
        """Lay out (outputs, inputs) float32 or bfloat16."""
        outputs, inputs = weight.shape
        return cls(_blocks(weight), None, padded(bias), KINDS[weight.dtype], outputs, inputs, max(inputs, 1))

    @classmethod
    def from_integers(cls, integers: Tensor, scales: Tensor, bias: Tensor | None = None, bits: int = 8) -> "Matrix":
        """Lay out (outputs, inputs) int8 with scales (outputs, inputs / group); of 4 bits: -8 to 7, inputs even."""
        outputs, inputs = integers.shape
        blocks, kind = _blocks(integers), KINDS[torch.int8]
        if bits == 4:
            blocks, kind = (blocks[:, 0::2] & 15 | blocks[:, 1::2] << 4).contiguous(), INT4
        return cls(blocks, _blocks(scales.float()), padded(bias), kind, outputs, inputs, inputs // scales.size(1))


def _blocks(weight: Tensor) -> Tensor:
    """Return (outputs, inputs) as (outputs / 64, inputs, 64), padded with zeros."""
    weight = F.pad(weight.detach(), (0, 0, 0, -weight.size(0) % BLOCK))
    return weight.view(-1, BLOCK, weight.size(1)).transpose(1, 2).contiguous()


def padded(vector: Tensor | None) -> Tensor | None:
    """Return a copy in float32, padded with zeros to a multiple of 64."""
    return None if vector is None else F.pad(vector.detach().float(), (0, -vector.numel() % BLOCK)).clone()


@dataclass(frozen=True)
class LayerWeights:
    """The weights of one block; gains and biases of norms are padded to a multiple of 64, those of heads are not.

    Attributes:
        qkv: queries, keys and values in one matrix.
        projection: of attention's result.
        gate: of a gated feed-forward network; None elsewhere.
        up: into its hidden layer.
        down: out of it.
        norms: gain and bias of both norms, the biases None where there are none.
        head_norms: gains of the norms of query and key heads, or None.
    """

    qkv: Matrix
    projection: Matrix
    gate: Matrix | None
    up: Matrix
    down: Matrix
    norms: tuple[Tensor, Tensor | None, Tensor, Tensor | None]
    head_norms: tuple[Tensor, Tensor] | None


@dataclass(frozen=True)
class Weights:
    """The weights of a whole model, float32 but for the matrices.

    Attributes:
        config: its architecture.
        tokens: (V, C) embedding.
        positions: (T, C) added to it, or None.
        rotation: cos and sin, (T, D) each, or None.
        layers: from the first to the last.
        norm: gain and bias of the last norm, padded.
        head: from the last norm to V logits.
    """

    config: ModelConfig
    tokens: Tensor
    positions: Tensor | None
    rotation: tuple[Tensor, Tensor] | None
    layers: Sequence[LayerWeights]
    norm: tuple[Tensor, Tensor | None]
    head: Matrix
