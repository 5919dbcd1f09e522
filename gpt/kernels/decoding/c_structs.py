"""The structures of `src/decoding/model.h`, and functions that fill them in."""

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int32, c_void_p

import torch
from torch import Tensor

from gpt.config import SamplingParams
from gpt.kernels.contract import fields, floats, pointer
from gpt.kernels.decoding.layout import LayerWeights, Matrix, Weights
from gpt.kernels.kinds import Activation

SMALLEST, LARGEST = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
LARGEST_INT32 = 2**31 - 1
SAMPLING = frozenset({"temperature", "top_k", "top_p", "min_p", "repetition_penalty"})
"""Fields of `SamplingParams` by which C samples."""
AROUND_SAMPLING = frozenset(
    {"max_new_tokens", "seed", "stop", "end_id", "logprobs", "overflow", "slide_chunk", "empty_prompt", "long_prompt"}
)
"""Those that say where a text begins and ends, which is not C's concern."""
ACTIVATIONS = {
    "gelu": Activation.GELU,
    "gelu_tanh": Activation.GELU_TANH,
    "relu": Activation.RELU,
    "relu2": Activation.RELU_SQUARED,
    "swiglu": Activation.GATED_SILU,
}
"""Known values of `model.mlp`."""
INTEGERS = ctypes.POINTER(c_int32)


class CMatrix(ctypes.Structure):
    _fields_ = fields((c_void_p, "weights scales bias"), (c_int32, "kind outputs inputs group"))


class CLayer(ctypes.Structure):
    _fields_ = fields(
        (CMatrix, "qkv projection gate up down"),
        (c_void_p, "norm_1 norm_1_bias norm_2 norm_2_bias q_norm k_norm conv"),
    )


class CModel(ctypes.Structure):
    _fields_ = fields(
        (CMatrix, "head"),
        (c_void_p, "token_embedding position_embedding cos sin norm norm_bias"),
        (c_float, "eps softcap"),
        (c_int32, "layers heads kv_heads head_dim dim hidden_dim vocab_size block_size"),
        (c_int32, "is_layer_norm activation conv_taps"),
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
    """Return the values as an array of int32."""
    return (c_int32 * len(values))(*values)


def batch_in_c(tokens: Sequence[int], sequences: Sequence[int], positions: Sequence[int]) -> CBatch:
    """Return the tokens of a pass, which keeps its arrays alive."""
    return CBatch(integers(tokens), integers(sequences), integers(positions), len(tokens))


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
    pointers = pointer(matrix.weights, matrix.weights_dtype), floats(matrix.scales), floats(matrix.bias)
    return CMatrix(*pointers, matrix.kind, matrix.outputs, matrix.inputs, matrix.group)


def layer_in_c(layer: LayerWeights) -> CLayer:
    """Return the weights of a block for C."""
    matrices = map(matrix_in_c, (layer.qkv, layer.projection, layer.gate, layer.up, layer.down))
    return CLayer(*matrices, *map(floats, (*layer.norms, *(layer.head_norms or (None, None)), layer.conv)))


def model_in_c(weights: Weights) -> CModel:
    """Return a model for C, without its layers; the caller keeps the weights alive."""
    config = weights.config
    tensors = (weights.tokens, weights.positions, *(weights.rotation or (None, None)), *weights.norm)
    sizes = (config.n_layer, config.n_head, config.kv_heads, config.head_dim, config.n_embd, config.mlp_hidden)
    choices = (config.norm == "layernorm", ACTIVATIONS[config.mlp], config.mlp_conv or 0)
    numbers = (config.norm_eps, config.logit_softcap or 0.0, *sizes, config.vocab_size, config.block_size, *choices)
    return CModel(matrix_in_c(weights.head), *map(floats, tensors), *numbers)
