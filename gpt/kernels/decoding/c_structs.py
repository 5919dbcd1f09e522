"""The structures of `src/decoding/model.h`, and functions that fill them in."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from gpt.config import SamplingParams
from gpt.kernels.decoding.layout import LayerWeights, Matrix, Weights

SMALLEST, LARGEST = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
LARGEST_INT32 = 2**31 - 1
SAMPLING = frozenset({"temperature", "top_k", "top_p", "min_p", "repetition_penalty"})
"""Fields of `SamplingParams` by which C samples."""
AROUND_SAMPLING = frozenset(
    {"max_new_tokens", "seed", "stop", "end_id", "logprobs", "overflow", "slide_chunk", "empty_prompt", "long_prompt"}
)
"""Those that say where a text begins and ends, which is not C's concern."""
ACTIVATIONS = {"gelu": 0, "gelu_tanh": 1, "relu": 2, "relu2": 3, "swiglu": 4}


class CMatrix(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("weights", "scales", "bias")] + [
        (name, ctypes.c_int32) for name in ("kind", "outputs", "inputs", "group")
    ]


class CLayer(ctypes.Structure):
    _fields_ = [(name, CMatrix) for name in ("qkv", "projection", "gate", "up", "down")] + [
        (name, ctypes.c_void_p)
        for name in ("norm_1", "norm_1_bias", "norm_2", "norm_2_bias", "q_norm", "k_norm", "conv")
    ]


class CModel(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_int32)
            for name in ("layers", "heads", "kv_heads", "head_dim", "dim", "hidden_dim", "vocab_size", "block_size")
        ),
        ("is_layer_norm", ctypes.c_int32),
        ("activation", ctypes.c_int32),
        ("conv_taps", ctypes.c_int32),
        ("eps", ctypes.c_float),
        ("softcap", ctypes.c_float),
        *(
            (name, ctypes.c_void_p)
            for name in ("token_embedding", "position_embedding", "cos", "sin", "norm", "norm_bias")
        ),
        ("head", CMatrix),
    ]


class CCacheOptions(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("blocks", ctypes.c_int32), ("tables", ctypes.c_void_p)]


class CSampling(ctypes.Structure):
    _fields_ = [(name, ctypes.c_float) for name in ("temperature", "top_p", "min_p", "penalty")] + [
        (name, ctypes.c_int32) for name in ("top_k", "ids")
    ]


class CSample(ctypes.Structure):
    _fields_ = [
        ("sampling", CSampling),
        ("uniform", ctypes.c_float),
        ("seen", ctypes.c_void_p),
        ("logits", ctypes.c_void_p),
    ]


def pointer(x: Tensor | None, dtype: torch.dtype) -> ctypes.c_void_p:
    """Return the address of a tensor's memory, which the caller keeps alive; None becomes a null pointer.

    Args:
        x: contiguous, on the CPU.
        dtype: element type that C reads there.
    """
    if x is None:
        return ctypes.c_void_p(None)
    if x.dtype != dtype or not x.is_contiguous() or x.device.type != "cpu":
        raise TypeError(f"C reads contiguous {dtype} here, and was given {x.dtype} with strides {x.stride()}")
    return ctypes.c_void_p(x.data_ptr())


def floats(x: Tensor | None) -> ctypes.c_void_p:
    """Return the address of a float32 tensor's memory, as `pointer`."""
    return pointer(x, torch.float32)


def integers(values: Sequence[int]) -> ctypes.Array[ctypes.c_int32]:
    """Return the values as an array of int32."""
    return (ctypes.c_int32 * len(values))(*values)


def unknown_sampling(params: SamplingParams) -> str | None:
    """Return the first field by which C cannot sample, and which has not its default; None if there is none."""
    for name, field in type(params).model_fields.items():
        if name not in SAMPLING | AROUND_SAMPLING and getattr(params, name) != field.default:
            return name
    return None


def sampling_in_c(params: SamplingParams) -> CSampling:
    """Return the sampling parameters, rounded and clipped to float32 and int32 without a change of meaning."""
    temperature = max(params.temperature, SMALLEST) if params.temperature else 0.0
    penalty = min(max(params.repetition_penalty, SMALLEST), LARGEST)
    ids = LARGEST_INT32 if params.ids is None else params.ids
    return CSampling(temperature, params.top_p, params.min_p, penalty, min(params.top_k, LARGEST_INT32), ids)


def sample_in_c(sampling: CSampling, uniform: float, seen: Tensor | None, logits: Tensor | None) -> CSample:
    """Return the arguments for sampling a token; the caller keeps the tensors (V,) alive."""
    return CSample(sampling, uniform, pointer(seen, torch.uint8), floats(logits))


def matrix_in_c(matrix: Matrix | None) -> CMatrix:
    """Return a matrix for C; None becomes one without outputs."""
    if matrix is None:
        return CMatrix()
    weights = pointer(matrix.weights, matrix.weights_dtype)
    return CMatrix(
        weights, *map(floats, (matrix.scales, matrix.bias)), matrix.kind, matrix.outputs, matrix.inputs, matrix.group
    )


def layer_in_c(layer: LayerWeights) -> CLayer:
    """Return the weights of a block for C."""
    matrices = map(matrix_in_c, (layer.qkv, layer.projection, layer.gate, layer.up, layer.down))
    return CLayer(*matrices, *map(floats, (*layer.norms, *(layer.head_norms or (None, None)), layer.conv)))


def model_in_c(weights: Weights) -> CModel:
    """Return a model for C, without its layers; the caller keeps the weights alive."""
    config = weights.config
    return CModel(
        config.n_layer,
        config.n_head,
        config.kv_heads,
        config.head_dim,
        config.n_embd,
        config.mlp_hidden,
        config.vocab_size,
        config.block_size,
        config.norm == "layernorm",
        ACTIVATIONS[config.mlp],
        config.mlp_conv or 0,
        config.norm_eps,
        config.logit_softcap or 0.0,
        *map(floats, (weights.tokens, weights.positions, *(weights.rotation or (None, None)), *weights.norm)),
        matrix_in_c(weights.head),
    )
