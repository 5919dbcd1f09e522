"""Lay out a model's weights for the engine of `src/decoding`."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt.model import GPT
from gpt.model.positions import LearnedPositions, Rotary
from gpt.model.quantized import BFloat16Linear, QuantizedLinear
from gpt.native.contract import Kind, pointer
from gpt.native.coverage import changed_module, changed_tensor, uncovered
from gpt.native.decoding.c_structs import ACTIVATIONS, CLayer, CMatrix, CModel
from gpt.native.fingerprint import DECODING, changed_code
from gpt.system.errors import DeviceError
from gpt.system.processor import TILES, Processor

BLOCK = 64
"""Outputs of a matrix, or positions of keys, that lie side by side, as in `model.h`."""
DTYPES = {Kind.FLOAT32: torch.float32, Kind.BFLOAT16: torch.bfloat16}
"""Of the weights as C++ reads them; integers of all kinds are bytes."""


@dataclass(frozen=True)
class Weights:
    """A copy of a model's weights, as C reads them where they lie: in `tensors`."""

    model: CModel
    layers: ctypes.Array[CLayer]
    tensors: Sequence[Tensor]


def lay_out_weights(model: GPT, processor: Processor | None = None) -> Weights:
    """Return a copy of the weights of a model in eval mode, in the layout that a processor wants; None: the common one.

    The model has passed `check_native_support`.
    """
    copies = _Copies(processor is not None and TILES in processor.macros)
    layers = (CLayer * len(model.h))(*map(copies.layer, model.h))
    return Weights(copies.model(model), layers, copies.tensors)


def check_native_support(model: GPT) -> None:
    """Raise DeviceError unless a model is on the CPU, and is what its configuration and the package's code build."""
    if next(model.parameters()).device.type != "cpu":
        raise DeviceError("the native backend runs on a CPU")
    if reason := uncovered(model.config, ACTIVATIONS) or changed_module(model) or changed_tensor(model):
        raise DeviceError(f"the native backend does not cover {reason}")
    if reason := changed_code(DECODING):
        raise DeviceError(reason)


class _Copies:
    """Makes structures for C, and keeps the copies that they point to; gains and biases of norms are padded."""

    def __init__(self, in_tiles: bool) -> None:
        self._in_tiles, self.tensors = in_tiles, list[Tensor]()

    def model(self, model: GPT) -> CModel:
        config, rotation, positions = model.config, model.rotation, model.wpe
        table = getattr(positions, "weight" if isinstance(positions, LearnedPositions) else "table", None)
        tables = (rotation.cos, rotation.sin) if isinstance(rotation, Rotary) else (None, None)
        tensors = *map(self._floats, (model.wte.weight, table, *tables)), *self._norm(model.ln_f)
        sizes = (config.n_layer, config.n_head, config.kv_heads, config.head_dim, config.n_embd, config.mlp_hidden)
        choices = (config.norm == "layernorm", ACTIVATIONS[config.mlp])
        numbers = (config.norm_eps, *sizes, config.vocab_size, config.block_size, *choices)
        return CModel(self._matrix(model.lm_head), *tensors, *numbers)

    def layer(self, block: Any) -> CLayer:
        attn, mlp = block.attn, block.mlp
        matrices = (
            self._matrix(attn.c_q, attn.c_k, attn.c_v),
            self._matrix(attn.c_proj),
            self._matrix(mlp.c_gate) if hasattr(mlp, "c_gate") else CMatrix(),  # without outputs: none
            self._matrix(mlp.c_fc),
            self._matrix(mlp.c_proj),
        )
        head_norms = (self._floats(getattr(norm, "weight", None)) for norm in (attn.q_norm, attn.k_norm))
        return CLayer(*matrices, *self._norm(block.ln_1), *self._norm(block.ln_2), *head_norms)

    def _matrix(self, *layers: Any) -> CMatrix:
        """Return linear layers that share their input as one matrix."""
        if len({(type(layer), getattr(layer, "bits", None)) for layer in layers}) > 1:
            raise DeviceError("the native backend needs queries, keys and values in the same format")

        def joined(name: str) -> Tensor:
            return torch.cat([getattr(layer, name) for layer in layers])

        bias = None if layers[0].bias is None else joined("bias")
        if isinstance(layers[0], QuantizedLinear):
            matrix = Matrix.from_integers(joined("unpacked"), joined("scales"), bias, layers[0].bits)
        else:
            rounded = isinstance(layers[0], BFloat16Linear)
            matrix = Matrix.from_floats(joined("rounded") if rounded else joined("weight").float(), bias)
        matrix = matrix.in_tiles() if self._in_tiles else matrix
        weights = self._keep(matrix.weights, DTYPES.get(matrix.kind, torch.int8))
        factors, sizes = self._keep(matrix.scales), (matrix.outputs, matrix.inputs, matrix.group)
        return CMatrix(weights, factors, self._keep(_padded(matrix.bias)), matrix.kind, *sizes)

    def _norm(self, norm: Any) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
        return self._keep(_padded(norm.weight)), self._keep(_padded(getattr(norm, "bias", None)))

    def _floats(self, x: Any) -> ctypes.c_void_p:
        return self._keep(None if x is None else x.detach().to(torch.float32, copy=True).contiguous())

    def _keep(self, x: Tensor | None, dtype: torch.dtype = torch.float32) -> ctypes.c_void_p:
        if x is not None:
            self.tensors.append(x)
        return pointer(x, dtype)


@dataclass(frozen=True)
class Matrix:
    """A linear layer, laid out in blocks of 64 outputs.

    Attributes:
        weights: (outputs / 64, inputs, 64); for int4 (outputs / 64, inputs / 2, 64), two in a byte; for int8 in tiles
            (outputs / 64, inputs / 64, 4, 16, 16, 4), see `in_tiles`.
        scales: (outputs / 64, inputs / group, 64) float32, factors of the weights; None: 1.
        bias: (outputs,), or None.
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

    @classmethod
    def from_floats(cls, weight: Tensor, bias: Tensor | None = None) -> "Matrix":
        """Lay out (outputs, inputs) float32 or bfloat16."""
        kind = Kind.BFLOAT16 if weight.dtype == torch.bfloat16 else Kind.FLOAT32
        outputs, inputs = weight.shape
        return cls(_blocks(weight), None, bias, kind, outputs, inputs, max(inputs, 1))

    @classmethod
    def from_integers(cls, integers: Tensor, scales: Tensor, bias: Tensor | None = None, bits: int = 8) -> "Matrix":
        """Lay out (outputs, inputs) int8 with scales (outputs, inputs / group); for 4 bits -8 to 7, inputs even."""
        (outputs, inputs), blocks, kind = integers.shape, _blocks(integers), Kind.INT8
        if bits == 4:
            blocks, kind = (blocks[:, 0::2] & 15 | blocks[:, 1::2] << 4).contiguous(), Kind.INT4
        return cls(blocks, _blocks(scales.float()), bias, kind, outputs, inputs, inputs // scales.size(1))

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


def _padded(vector: Tensor | None) -> Tensor | None:
    """Return a copy in float32, whose last dimension is padded with zeros to a multiple of 64."""
    return None if vector is None else F.pad(vector.detach().float(), (0, -vector.size(-1) % BLOCK)).clone()
