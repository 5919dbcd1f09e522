"""Lay out a model's weights for the engine of `src/decoding`."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpt.kernels.contract import pointer
from gpt.kernels.coverage import changed_module, uncovered
from gpt.kernels.decoding.c_structs import ACTIVATIONS, CLayer, CMatrix, CModel
from gpt.kernels.decoding.layout import Matrix, padded
from gpt.kernels.fingerprint import DECODING, changed_code
from gpt.model import GPT
from gpt.model.positions import LearnedPositions, Rotary
from gpt.model.quantized import BFloat16Linear, QuantizedLinear
from gpt.system.errors import DeviceError
from gpt.system.processor import TILES, Processor


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
    reason = uncovered(model.config, ACTIVATIONS) or changed_module(model)
    if reason is not None:
        raise DeviceError(f"the native backend does not cover {reason}")
    reason = changed_code(DECODING)
    if reason is not None:
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
        if len({type(layer) for layer in layers}) > 1:
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
        pointers = self._keep(matrix.weights, matrix.weights_dtype), self._keep(matrix.scales), self._keep(matrix.bias)
        return CMatrix(*pointers, matrix.kind, matrix.outputs, matrix.inputs, matrix.group)

    def _norm(self, norm: Any) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
        return self._keep(padded(norm.weight)), self._keep(padded(getattr(norm, "bias", None)))

    def _floats(self, x: Any) -> ctypes.c_void_p:
        return self._keep(None if x is None else x.detach().to(torch.float32, copy=True).contiguous())

    def _keep(self, x: Tensor | None, dtype: torch.dtype = torch.float32) -> ctypes.c_void_p:
        if x is not None:
            self.tensors.append(x)
        return pointer(x, dtype)
