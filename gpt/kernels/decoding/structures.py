"""The structures of `src/decode_model.h`, and what fills them in."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from gpt.config import SamplingParams
from gpt.kernels.decoding.layout import LayerWeights, Matrix, Weights

SMALLEST = torch.finfo(torch.float32).tiny
ACTIVATIONS = {"gelu": 0, "gelu_tanh": 1, "relu": 2, "relu2": 3, "swiglu": 4}


class CMatrix(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("weights", "scales", "bias")] + [
        (name, ctypes.c_int32) for name in ("kind", "outputs", "inputs", "group")
    ]


class CLayer(ctypes.Structure):
    _fields_ = [(name, CMatrix) for name in ("qkv", "projection", "gate", "up", "down")] + [
        (name, ctypes.c_void_p) for name in ("norm_1", "norm_1_bias", "norm_2", "norm_2_bias", "q_norm", "k_norm")
    ]


class CModel(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_int32)
            for name in ("layers", "heads", "kv_heads", "head_width", "width", "hidden", "vocabulary", "window")
        ),
        ("is_centred", ctypes.c_int32),
        ("activation", ctypes.c_int32),
        ("eps", ctypes.c_float),
        ("softcap", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("tokens", "positions", "cosine", "sine", "norm", "norm_bias")),
        ("head", CMatrix),
        ("layer", ctypes.POINTER(CLayer)),
    ]


class CSampling(ctypes.Structure):
    _fields_ = [(name, ctypes.c_float) for name in ("temperature", "top_p", "min_p", "penalty")] + [
        ("top_k", ctypes.c_int32)
    ]


def pointer(x: Tensor | None) -> ctypes.c_void_p:
    """To a tensor's memory, which the caller keeps alive; None becomes a null pointer."""
    assert x is None or x.is_contiguous()
    return ctypes.c_void_p(None if x is None else x.data_ptr())


def integers(values: Sequence[int]) -> ctypes.Array[ctypes.c_int32]:
    """As an array."""
    return (ctypes.c_int32 * len(values))(*values)


def sampling_in_c(params: SamplingParams) -> CSampling:
    temperature = max(params.temperature, SMALLEST) if params.temperature else 0.0
    return CSampling(temperature, params.top_p, params.min_p, params.repetition_penalty, params.top_k)


def matrix_in_c(matrix: Matrix | None) -> CMatrix:
    """A matrix; None becomes one without outputs."""
    if matrix is None:
        return CMatrix()
    pointers = map(pointer, (matrix.weights, matrix.scales, matrix.bias))
    return CMatrix(*pointers, matrix.kind, matrix.outputs, matrix.inputs, matrix.group)


def layer_in_c(layer: LayerWeights) -> CLayer:
    matrices = map(matrix_in_c, (layer.qkv, layer.projection, layer.gate, layer.up, layer.down))
    return CLayer(*matrices, *map(pointer, (*layer.norms, *(layer.head_norms or (None, None)))))


def model_in_c(weights: Weights, layers: ctypes.Array[CLayer]) -> CModel:
    config = weights.config
    return CModel(
        config.n_layer,
        config.n_head,
        config.kv_heads,
        config.head_width,
        config.n_embd,
        config.mlp_hidden,
        config.vocab_size,
        config.block_size,
        config.norm == "layernorm",
        ACTIVATIONS[config.mlp],
        config.norm_eps,
        config.logit_softcap or 0.0,
        *map(pointer, (weights.tokens, weights.positions, *(weights.rotation or (None, None)), *weights.norm)),
        matrix_in_c(weights.head),
        layers,
    )
