"""The structures of `src/decoding/model.h`, and functions that fill them in.

The fields have the names, order and types of the header.
"""

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int32, c_void_p

import torch
from torch import Tensor

from gpt.config import SamplingParams
from gpt.native.contract import Activation, fields, floats, pointer

# Sampling parameters are float64 and unbounded integers in Python. C++ has these ranges.
SMALLEST_FLOAT = torch.finfo(torch.float32).tiny
LARGEST_FLOAT = torch.finfo(torch.float32).max
LARGEST_INT32 = 2**31 - 1
SAMPLING_FIELDS = frozenset({"temperature", "top_k", "top_p", "min_p", "repetition_penalty"})
"""Fields of `SamplingParams` that C++ applies."""
ACTIVATIONS = {
    "gelu": Activation.GELU,
    "gelu_tanh": Activation.GELU_TANH,
    "relu": Activation.RELU,
    "relu2": Activation.RELU_SQUARED,
    "swiglu": Activation.GATED_SILU,
}
"""Values of `model.mlp` that C++ can compute, and their numbers in C++."""
INTEGERS = ctypes.POINTER(c_int32)
"""The type of a pointer to an array of int32."""


class CMatrix(ctypes.Structure):
    _fields_ = fields((c_void_p, "weights scales bias"), (c_int32, "kind outputs inputs group"))


class CLayer(ctypes.Structure):
    _fields_ = fields(
        (CMatrix, "qkv projection gate up down"),
        (c_void_p, "norm_1 norm_1_bias norm_2 norm_2_bias q_norm k_norm"),
    )


class CModel(ctypes.Structure):
    _fields_ = fields(
        (CMatrix, "head"),
        (c_void_p, "token_embedding position_embedding cos sin norm norm_bias"),
        (c_float, "eps"),
        (c_int32, "layers heads kv_heads head_dim dim hidden_dim vocab_size block_size"),
        (c_int32, "is_layer_norm activation"),
    )


class CCacheOptions(ctypes.Structure):
    _fields_ = fields((c_void_p, "tables"), (c_int32, "kind blocks"))


class CBatch(ctypes.Structure):
    _fields_ = fields((INTEGERS, "tokens sequences positions"), (c_int32, "count"))


class CSampling(ctypes.Structure):
    _fields_ = fields((c_float, "temperature top_p min_p penalty"), (c_int32, "top_k ids"))


class CSample(ctypes.Structure):
    _fields_ = fields((CSampling, "sampling"), (c_float, "uniform"), (c_void_p, "seen logits"))


STRUCTURES = (CMatrix, CLayer, CModel, CCacheOptions, CBatch, CSampling, CSample)


def integers(values: Sequence[int]) -> ctypes.Array[c_int32]:
    """Return a copy of numbers as an array that C++ can read."""
    return (c_int32 * len(values))(*values)


def sampling_in_c(params: SamplingParams) -> CSampling:
    """Return sampling parameters as float32 and int32, clipped to the ranges of these types.

    Clipping keeps their meaning: a tiny temperature must not be rounded to 0, which means greedy
    sampling, and a penalty must stay positive and finite.
    """
    temperature = 0.0  # greedy
    if params.temperature > 0:
        temperature = max(params.temperature, SMALLEST_FLOAT)
    # C++ has no None; no vocabulary has more ids than the largest int32.
    ids = LARGEST_INT32 if params.ids is None else params.ids
    return CSampling(
        temperature=temperature,
        top_p=params.top_p,
        min_p=params.min_p,
        penalty=min(max(params.repetition_penalty, SMALLEST_FLOAT), LARGEST_FLOAT),
        top_k=min(params.top_k, LARGEST_INT32),
        ids=ids,
    )


def sample_in_c(
    sampling: CSampling, uniform: float, seen: Tensor | None, logits: Tensor | None
) -> CSample:
    """Return the structure by which C++ samples a token; the caller keeps the tensors alive.

    Args:
        uniform: random number in [0, 1) that chooses the token.
        seen: (V,) uint8, 1 for tokens to which the repetition penalty applies; None without one.
        logits: (V,) float32, into which C++ copies the logits; None if they are not needed.
    """
    return CSample(sampling, uniform, pointer(seen, torch.uint8), floats(logits))
