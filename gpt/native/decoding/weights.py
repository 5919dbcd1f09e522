"""Lay out a model's weights for the decoder of `src/decoding`."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt.model import GPT
from gpt.model.positions import LearnedPositions, Rotary
from gpt.model.quantized import BFloat16Linear, QuantizedLinear
from gpt.native.contract import BLOCK, Kind, pointer
from gpt.native.coverage import changed_module, changed_tensor, uncovered
from gpt.native.decoding.c_structs import ACTIVATIONS, CLayer, CMatrix, CModel
from gpt.native.fingerprint import DECODING, changed_code
from gpt.system.processor import TILES, Processor

FLOAT_DTYPES = {Kind.FLOAT32: torch.float32, Kind.BFLOAT16: torch.bfloat16}
"""Types of floating-point weights as C++ reads them; it reads integers of all kinds as bytes."""
TILE_INPUTS = 64
"""Bytes in a row of an AMX tile, and so the int8 inputs that one row holds."""


def unsupported_reason(model: GPT) -> str | None:
    """Return why the decoder must not compute a model; None if it may."""
    reason = reason_not_as_configured(model)
    if reason is not None:
        return reason
    for block in model.h:
        # C++ computes queries, keys and values as one matrix.
        formats = {_format(layer) for layer in _inputs_of_attention(block)}
        if len(formats) > 1:
            return "the native backend needs queries, keys and values in the same format"
    return None


def reason_not_as_configured(model: GPT) -> str | None:
    """Return why a model may compute something else than the decoder; None if it does not.

    The decoder computes unmodified models on the CPU, as the package builds them from their
    configuration.
    """
    if next(model.parameters()).device.type != "cpu":
        return "the native backend runs on a CPU"
    other = uncovered(model.config, ACTIVATIONS) or changed_module(model) or changed_tensor(model)
    if other is not None:
        return f"the native backend does not cover {other}"
    return changed_code(DECODING)


@dataclass(frozen=True)
class Weights:
    """A copy of a model's weights, as C++ reads them where they lie: in `tensors`."""

    model: CModel
    layers: ctypes.Array[CLayer]
    tensors: Sequence[Tensor]


def lay_out_weights(model: GPT, processor: Processor | None = None) -> Weights:
    """Return a copy of the weights of a model in eval mode, for which `unsupported_reason` is None.

    Args:
        processor: the class whose layout is wanted; None means the layout that all classes but
            those with tiles have.
    """
    has_tiles = processor is not None and TILES in processor.macros
    copies = _Copies(has_tiles)
    layers = [copies.layer(block) for block in model.h]
    return Weights(copies.model(model), (CLayer * len(layers))(*layers), copies.tensors)


class _Copies:
    """Makes the structures that C++ reads, and keeps the tensors alive that they point to.

    Biases and the weights of norms are padded to whole blocks, since C++ reads whole vectors.
    """

    def __init__(self, in_tiles: bool) -> None:
        self._in_tiles = in_tiles
        self.tensors: list[Tensor] = []

    def model(self, model: GPT) -> CModel:
        """Return the structure of a model without its blocks.

        Without rotary positions the tables are null pointers.
        """
        config = model.config
        cos = None
        sin = None
        if isinstance(model.rotation, Rotary):
            cos = model.rotation.cos
            sin = model.rotation.sin
        norm, norm_bias = self._norm(model.ln_f)
        return CModel(
            head=self._matrix(model.lm_head),
            token_embedding=self._floats(model.wte.weight),
            position_embedding=self._floats(_position_table(model)),
            cos=self._floats(cos),
            sin=self._floats(sin),
            norm=norm,
            norm_bias=norm_bias,
            eps=config.norm_eps,
            layers=config.n_layer,
            heads=config.n_head,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            dim=config.n_embd,
            hidden_dim=config.mlp_hidden,
            vocab_size=config.vocab_size,
            block_size=config.block_size,
            is_layer_norm=config.norm == "layernorm",
            activation=ACTIVATIONS[config.mlp],
        )

    def layer(self, block: Any) -> CLayer:
        """Return the structure of a block; a matrix or norm that it lacks has null pointers."""
        gate = CMatrix()  # of null pointers, unless the feed-forward network is gated
        if hasattr(block.mlp, "c_gate"):
            gate = self._matrix(block.mlp.c_gate)
        norm_1, norm_1_bias = self._norm(block.ln_1)
        norm_2, norm_2_bias = self._norm(block.ln_2)
        return CLayer(
            qkv=self._matrix(*_inputs_of_attention(block)),
            projection=self._matrix(block.attn.c_proj),
            gate=gate,
            up=self._matrix(block.mlp.c_fc),
            down=self._matrix(block.mlp.c_proj),
            norm_1=norm_1,
            norm_1_bias=norm_1_bias,
            norm_2=norm_2,
            norm_2_bias=norm_2_bias,
            q_norm=self._floats(getattr(block.attn.q_norm, "weight", None)),
            k_norm=self._floats(getattr(block.attn.k_norm, "weight", None)),
        )

    def _matrix(self, *layers: Any) -> CMatrix:
        """Return linear layers that share their input as one matrix: their outputs are joined."""
        bias = None
        if layers[0].bias is not None:
            bias = _joined(layers, "bias")
        matrix = _joined_matrix(layers, bias)
        if self._in_tiles:
            matrix = matrix.in_tiles()
        # Types of floats say how wide they are; integers of any kind are passed as bytes.
        return CMatrix(
            weights=self._keep(matrix.weights, FLOAT_DTYPES.get(matrix.kind, torch.int8)),
            scales=self._keep(matrix.scales),
            bias=self._keep(_padded(matrix.bias)),
            kind=matrix.kind,
            outputs=matrix.outputs,
            inputs=matrix.inputs,
            group=matrix.group,
        )

    def _norm(self, norm: Any) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
        """Return the weight and the bias of a norm; RMSNorm has no bias."""
        bias = getattr(norm, "bias", None)
        return self._keep(_padded(norm.weight)), self._keep(_padded(bias))

    def _floats(self, x: Any) -> ctypes.c_void_p:
        """Return a pointer to a copy in float32, without padding."""
        if x is None:
            return self._keep(None)
        return self._keep(x.detach().to(torch.float32, copy=True).contiguous())

    def _keep(self, x: Tensor | None, dtype: torch.dtype = torch.float32) -> ctypes.c_void_p:
        """Return a pointer to a tensor, which stays alive as long as `tensors`."""
        if x is not None:
            self.tensors.append(x)
        return pointer(x, dtype)


@dataclass(frozen=True)
class Matrix:
    """A linear layer, laid out in blocks of `BLOCK` = 64 outputs.

    Attributes:
        weights: (outputs / 64, inputs, 64); for int4 (outputs / 64, inputs / 2, 64), two in a byte;
            for int8 in tiles (outputs / 64, inputs / 64, 4, 16, 16, 4), see `in_tiles`.
        scales: (outputs / 64, inputs / group, 64) float32, factors of the weights; None means 1.
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
        # Without scales the group has no meaning, but C++ divides by its size.
        return cls(_blocks(weight), None, bias, kind, outputs, inputs, group=max(inputs, 1))

    @classmethod
    def from_integers(
        cls, integers: Tensor, scales: Tensor, bias: Tensor | None = None, bits: int = 8
    ) -> "Matrix":
        """Lay out (outputs, inputs) int8 with scales (outputs, inputs / group).

        Integers of 4 bits are from -8 to 7, and the number of inputs is even, since two of them
        share a byte.
        """
        outputs, inputs = integers.shape
        blocks = _blocks(integers)
        kind = Kind.INT8
        if bits == 4:
            # Of the two inputs in a byte, the first has the low bits.
            low = blocks[:, 0::2] & 15
            high = blocks[:, 1::2] << 4
            blocks = (low | high).contiguous()
            kind = Kind.INT4
        group = inputs // scales.size(1)
        return cls(blocks, _blocks(scales.float()), bias, kind, outputs, inputs, group)

    def in_tiles(self) -> "Matrix":
        """Return the matrix as the AMX tile unit reads it, if it is int8 with one scale per output.

        A tile holds 64 inputs of 16 outputs, four inputs side by side; 64 outputs take four tiles.
        """
        if self.kind != Kind.INT8 or self.group != self.inputs:
            return self
        padded = F.pad(self.weights, (0, 0, 0, -self.inputs % TILE_INPUTS))  # whole rows of tiles
        # (outputs / 64, inputs / 64, 16 and 4 inputs, 4 tiles, 16 outputs)
        split = padded.view(len(padded), -1, 16, 4, 4, 16)
        # (outputs / 64, inputs / 64, 4 tiles, 16 inputs, 16 outputs, 4 inputs)
        tiles = split.permute(0, 1, 4, 2, 5, 3).contiguous()
        return Matrix(
            weights=tiles,
            scales=self.scales,
            bias=self.bias,
            kind=Kind.INT8_TILES,
            outputs=self.outputs,
            inputs=self.inputs,
            group=self.group,
        )


def _inputs_of_attention(block: Any) -> tuple[Any, Any, Any]:
    """Return the layers that compute queries, keys and values: C++ computes them as one matrix."""
    return block.attn.c_q, block.attn.c_k, block.attn.c_v


def _format(layer: Any) -> tuple[type, int | None]:
    """Return what two linear layers must have in common to be one matrix."""
    return type(layer), getattr(layer, "bits", None)


def _joined_matrix(layers: Sequence[Any], bias: Tensor | None) -> Matrix:
    """Lay out linear layers of one format as one matrix."""
    if isinstance(layers[0], QuantizedLinear):
        integers = _joined(layers, "unpacked")
        return Matrix.from_integers(integers, _joined(layers, "scales"), bias, layers[0].bits)
    if isinstance(layers[0], BFloat16Linear):
        return Matrix.from_floats(_joined(layers, "rounded"), bias)
    return Matrix.from_floats(_joined(layers, "weight").float(), bias)


def _joined(layers: Sequence[Any], name: str) -> Tensor:
    """Join a tensor of several layers along their outputs."""
    return torch.cat([getattr(layer, name) for layer in layers])


def _position_table(model: GPT) -> Any:
    """Return what is added to token embeddings, (block_size, C); None with rotary positions."""
    name = "weight" if isinstance(model.wpe, LearnedPositions) else "table"
    return getattr(model.wpe, name, None)


def _blocks(weight: Tensor) -> Tensor:
    """Return (outputs, inputs) as (outputs / 64, inputs, 64), padded with zeros.

    The 64 outputs of a block lie side by side, so that C++ multiplies a vector of them at a time.
    """
    weight = F.pad(weight.detach(), (0, 0, 0, -weight.size(0) % BLOCK))
    return weight.view(-1, BLOCK, weight.size(1)).transpose(1, 2).contiguous()


def _padded(vector: Tensor | None) -> Tensor | None:
    """Return a copy in float32, whose last dimension is padded with zeros to whole blocks."""
    if vector is None:
        return None
    return F.pad(vector.detach().float(), (0, -vector.size(-1) % BLOCK)).clone()
