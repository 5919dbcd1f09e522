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
from gpt.native.coverage import changed_module, changed_tensor, uncovered_option
from gpt.native.decoding.c_structs import ACTIVATIONS, CLayer, CMatrix, CModel
from gpt.native.fingerprint import DECODING, changed_code
from gpt.system.processor import TILES, Processor

FLOAT_DTYPES = {Kind.FLOAT32: torch.float32, Kind.BFLOAT16: torch.bfloat16}
"""Types in which C++ reads floating-point weights; it reads integers of all kinds as bytes."""
TILE_INPUTS = 64
"""Number of int8 inputs in a row of an AMX tile, which has 64 bytes."""


def unsupported_reason(model: GPT) -> str | None:
    """Return why the decoder cannot compute a model; None if it can."""
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
    """Return why a model may compute something else than the decoder would; None if it does not.

    The decoder computes models on the CPU that are as the package builds them from their
    configuration.
    """
    if next(model.parameters()).device.type != "cpu":
        return "the native backend runs on a CPU"
    not_covered = (
        uncovered_option(model.config, ACTIVATIONS)
        or changed_module(model)
        or changed_tensor(model)
    )
    if not_covered is not None:
        return f"the native backend does not cover {not_covered}"
    # The package's own code may have been edited, or replaced in memory.
    return changed_code(DECODING)


@dataclass(frozen=True)
class Weights:
    """A copy of a model's weights in the layout that C++ reads.

    Attributes:
        model: pointers to the weights outside of the blocks, and the sizes of the model.
        layers: pointers to the weights of each block.
        tensors: the memory that the pointers point to.
    """

    model: CModel
    layers: ctypes.Array[CLayer]
    tensors: Sequence[Tensor]


def lay_out_weights(model: GPT, processor: Processor | None = None) -> Weights:
    """Return a copy of the weights of a model in eval mode, for which `unsupported_reason` is None.

    Args:
        processor: the processor class that will read the weights; None means any class without
            AMX tiles, which all read the same layout.
    """
    has_tiles = processor is not None and TILES in processor.macros
    copies = _Copies(has_tiles)
    layers = [copies.layer(block) for block in model.h]
    c_layers = (CLayer * len(layers))(*layers)
    return Weights(copies.model(model), c_layers, copies.tensors)


class _Copies:
    """Makes the structures that C++ reads, and keeps the tensors that they point to.

    Biases and the weights of norms are padded to whole blocks, since C++ reads whole vectors.

    Args:
        in_tiles: whether int8 matrices are laid out for AMX tiles.
    """

    def __init__(self, in_tiles: bool) -> None:
        self._in_tiles = in_tiles
        self.tensors: list[Tensor] = []

    def model(self, model: GPT) -> CModel:
        """Return the structure of a model, which does not include its blocks.

        Without rotary positions `cos` and `sin` are null pointers.
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
        """Return the structure of a block; matrices and norms that it lacks are null pointers."""
        gate = CMatrix()  # null pointers, which stay if the feed-forward network is not gated
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
        """Return the matrix of a linear layer, or of several that have the same input.

        The outputs of several layers become the outputs of one matrix, one layer after another.
        """
        bias = None
        if layers[0].bias is not None:
            bias = _joined(layers, "bias")
        matrix = _joined_matrix(layers, bias)
        if self._in_tiles:
            matrix = matrix.in_tiles()
        # Integers of all kinds, int4 too, are stored in tensors of int8.
        dtype = FLOAT_DTYPES.get(matrix.kind, torch.int8)
        return CMatrix(
            weights=self._keep(matrix.weights, dtype),
            scales=self._keep(matrix.scales),
            bias=self._keep(_padded(matrix.bias)),
            kind=matrix.kind,
            outputs=matrix.outputs,
            inputs=matrix.inputs,
            group=matrix.group,
        )

    def _norm(self, norm: Any) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
        """Return pointers to the weight and the bias of a norm; RMSNorm has no bias."""
        bias = getattr(norm, "bias", None)
        return self._keep(_padded(norm.weight)), self._keep(_padded(bias))

    def _floats(self, x: Any) -> ctypes.c_void_p:
        """Return a pointer to a copy of a tensor in float32; None becomes a null pointer."""
        if x is None:
            return self._keep(None)
        return self._keep(x.detach().to(torch.float32, copy=True).contiguous())

    def _keep(self, x: Tensor | None, dtype: torch.dtype = torch.float32) -> ctypes.c_void_p:
        """Keep a tensor alive in `tensors`; return a pointer to it, or a null pointer for None."""
        if x is not None:
            self.tensors.append(x)
        return pointer(x, dtype)


@dataclass(frozen=True)
class Matrix:
    """A linear layer, laid out in blocks of `BLOCK` = 64 outputs.

    Attributes:
        weights: (outputs / 64, inputs, 64). For int4 (outputs / 64, inputs / 2, 64), two inputs in
            a byte. For int8 in tiles (outputs / 64, inputs / 64, 4, 16, 16, 4), see `in_tiles`.
        scales: (outputs / 64, inputs / group, 64) float32, by which the weights are multiplied;
            None for weights that are floats.
        bias: (outputs,), or None.
        kind: type of the weights.
        outputs: number of outputs, without the padding of the last block.
        inputs: number of inputs.
        group: number of adjacent inputs that share a scale.
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
        """Lay out weights (outputs, inputs) in float32 or bfloat16."""
        kind = Kind.BFLOAT16 if weight.dtype == torch.bfloat16 else Kind.FLOAT32
        outputs, inputs = weight.shape
        # Floats have no scales and so no groups, but C++ divides by `group`, which must not be 0.
        return cls(_blocks(weight), None, bias, kind, outputs, inputs, group=max(inputs, 1))

    @classmethod
    def from_integers(
        cls, integers: Tensor, scales: Tensor, bias: Tensor | None = None, bits: int = 8
    ) -> "Matrix":
        """Lay out weights (outputs, inputs) in int8 with scales (outputs, inputs / group).

        Args:
            bits: 4 if all weights are from -8 to 7. Two inputs then share a byte, so the number of
                inputs has to be even.
        """
        outputs, inputs = integers.shape
        blocks = _blocks(integers)  # (outputs / 64, inputs, 64)
        kind = Kind.INT8
        if bits == 4:
            # Of each two adjacent inputs, the first is stored in the low 4 bits of a byte, and the
            # second in the high 4 bits. `& 15` keeps 4 bits of a negative number too.
            low_bits = blocks[:, 0::2] & 15
            high_bits = blocks[:, 1::2] << 4
            blocks = (low_bits | high_bits).contiguous()  # (outputs / 64, inputs / 2, 64)
            kind = Kind.INT4
        group = inputs // scales.size(1)
        return cls(blocks, _blocks(scales.float()), bias, kind, outputs, inputs, group)

    def in_tiles(self) -> "Matrix":
        """Return the matrix laid out for AMX tiles, if it is int8 with one scale for each output.

        Other matrices are returned as they are. A tile has 64 inputs of 16 outputs, so that a block
        of 64 outputs takes four tiles. In a tile, four inputs of an output lie side by side.
        """
        if self.kind != Kind.INT8 or self.group != self.inputs:
            return self
        # `F.pad` takes the last dimension first: only the inputs are padded, to whole tiles.
        padded = F.pad(self.weights, (0, 0, 0, -self.inputs % TILE_INPUTS))
        # (outputs / 64, inputs / 64, 16 rows of tiles, 4 inputs, 4 tiles, 16 outputs)
        split = padded.view(len(padded), -1, 16, 4, 4, 16)
        # (outputs / 64, inputs / 64, 4 tiles, 16 rows, 16 outputs, 4 inputs)
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
    """Return the layers of queries, keys and values, which C++ computes as one matrix."""
    return block.attn.c_q, block.attn.c_k, block.attn.c_v


def _format(layer: Any) -> tuple[type, int | None]:
    """Return the class of a linear layer and its bits; layers with the same ones can be joined."""
    return type(layer), getattr(layer, "bits", None)


def _joined_matrix(layers: Sequence[Any], bias: Tensor | None) -> Matrix:
    """Lay out linear layers of one format as one matrix.

    Args:
        bias: the joined bias of the layers.
    """
    if isinstance(layers[0], QuantizedLinear):
        integers = _joined(layers, "unpacked")  # int8, whatever the number of bits
        scales = _joined(layers, "scales")
        return Matrix.from_integers(integers, scales, bias, layers[0].bits)
    if isinstance(layers[0], BFloat16Linear):
        return Matrix.from_floats(_joined(layers, "rounded"), bias)
    # A plain linear layer: weights of other floating-point types are read as float32.
    return Matrix.from_floats(_joined(layers, "weight").float(), bias)


def _joined(layers: Sequence[Any], name: str) -> Tensor:
    """Join the tensors of several layers along their outputs, which are the first dimension.

    Args:
        name: the attribute of the layers that is the tensor.
    """
    return torch.cat([getattr(layer, name) for layer in layers])


def _position_table(model: GPT) -> Any:
    """Return the position embeddings (block_size, C); None with rotary positions."""
    name = "weight" if isinstance(model.wpe, LearnedPositions) else "table"
    return getattr(model.wpe, name, None)


def _blocks(weight: Tensor) -> Tensor:
    """Return weights (outputs, inputs) as (outputs / 64, inputs, 64), padded with zeros.

    The 64 outputs of a block lie side by side, so that C++ can compute a vector of outputs at a
    time.
    """
    # `F.pad` takes the last dimension first: only the outputs are padded.
    padded = F.pad(weight.detach(), (0, 0, 0, -weight.size(0) % BLOCK))
    return padded.view(-1, BLOCK, padded.size(1)).transpose(1, 2).contiguous()


def _padded(vector: Tensor | None) -> Tensor | None:
    """Return a copy in float32, padded with zeros to whole blocks; None stays None."""
    if vector is None:
        return None
    padding = -vector.size(-1) % BLOCK
    # Without padding `F.pad` may return the vector itself, so that it is copied.
    return F.pad(vector.detach().float(), (0, padding)).clone()
