"""Lay out a model's weights for the engine of `src/decoding`."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from gpt.config import ModelConfig
from gpt.errors import DeviceError
from gpt.kernels.contract import pointer
from gpt.kernels.coverage import uncovered, unknown_parameter
from gpt.kernels.decoding.c_structs import ACTIVATIONS, CLayer, CMatrix, CModel
from gpt.kernels.decoding.layout import Matrix, padded
from gpt.model import GPT
from gpt.model.meta import meta_device
from gpt.model.positions import LearnedPositions, Rotary
from gpt.model.quantized import BFloat16Linear, QuantizedLinear
from gpt.processor import Processor

TILES = "-mamx-int8"
"""Compiler flag of processors that multiply integers in tiles."""
IRRELEVANT = {"training", "p", "dropout"}
"""Attributes of modules that have no effect in eval mode."""


@dataclass(frozen=True)
class Weights:
    """A copy of a model's weights, as C reads them where they lie: in `tensors`."""

    model: CModel
    layers: ctypes.Array[CLayer]
    tensors: Sequence[Tensor]


def lay_out_weights(model: GPT, processor: Processor | None = None) -> Weights:
    """Return a copy of the weights of a model in eval mode, in the layout that a processor wants; None: the common one.

    Raises:
        DeviceError: the model is not on the CPU, or differs from what its configuration builds.
    """
    check_native_support(model)
    copies = _Copies(processor is not None and TILES in processor.flags)
    layers = (CLayer * len(model.h))(*map(copies.layer, model.h))
    return Weights(copies.model(model), layers, copies.tensors)


def check_native_support(model: GPT) -> None:
    """Check that a model is what its configuration builds, since the engine knows nothing else.

    Raises:
        DeviceError: it is not on the CPU, or was changed since.
    """
    if next(model.parameters()).device.type != "cpu":
        raise DeviceError("the native backend runs on a CPU")
    unknown = uncovered(model.config, ACTIVATIONS)
    if unknown is not None:
        raise DeviceError(f"the native backend does not cover {unknown}")
    configured = _configured_modules(model.config)
    modules = dict(model.named_modules())
    if modules.keys() - {"", "h"} != configured.keys():
        names = sorted(modules.keys() - {"", "h"} ^ configured.keys())
        raise DeviceError(f"the model differs from its configuration in {names[0]}")
    for name, module in modules.items():
        expected = configured.get(name) or module
        if module._forward_hooks or module._forward_pre_hooks:
            raise DeviceError("the native backend does not call hooks, and the model has some")
        if "forward" in vars(module) or not _is_equivalent(module, type(expected)):
            raise DeviceError(f"the native backend does not know what {type(module).__name__} computes")
        if _shapes(module) != _shapes(expected) or not _is_made_alike(module, expected):
            raise DeviceError(f"the model differs from its configuration in {name}")
    if type(model) is not GPT:
        raise DeviceError(f"the native backend does not know what {type(model).__name__} computes")


@lru_cache(maxsize=8)
def _configured_modules(config: ModelConfig) -> dict[str, nn.Module]:
    """Build all modules of a model except itself and its list of blocks."""
    with meta_device():
        model = GPT(config)
    unknown = unknown_parameter(model, config)
    if unknown is not None:
        raise DeviceError(f"the native backend does not cover {unknown}")
    modules = dict(model.named_modules())
    return {name: module for name, module in modules.items() if name not in ("", "h")}


def _is_equivalent(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether a module computes the same as `kind` in eval mode, as those that training puts in its place do."""
    if kind is nn.Linear and isinstance(module, QuantizedLinear | BFloat16Linear):
        return True
    is_native = type(module).__module__.startswith("gpt.kernels.training.")
    return type(module) is kind or (is_native and isinstance(module, kind))


def _shapes(module: Any) -> list[torch.Size | None]:
    tensors = (getattr(module, name, None) for name in ("weight", "bias", "cos", "sin", "table"))
    return [None if tensor is None else tensor.shape for tensor in tensors]


def _is_made_alike(module: nn.Module, expected: nn.Module) -> bool:
    names = vars(module).keys() & vars(expected).keys() - IRRELEVANT
    return all(vars(module)[name] == vars(expected)[name] for name in names if not name.startswith("_"))


class _Copies:
    """Makes structures for C, and keeps the copies that they point to; gains and biases of norms are padded."""

    def __init__(self, in_tiles: bool) -> None:
        self._in_tiles, self.tensors = in_tiles, list[Tensor]()

    def model(self, model: GPT) -> CModel:
        """Return all but the blocks."""
        config, rotation, positions = model.config, model.rotation, model.wpe
        table = getattr(positions, "weight" if isinstance(positions, LearnedPositions) else "table", None)
        tables = (rotation.cos, rotation.sin) if isinstance(rotation, Rotary) else (None, None)
        tensors = *map(self._floats, (model.wte.weight, table, *tables)), *self._norm(model.ln_f)
        sizes = (config.n_layer, config.n_head, config.kv_heads, config.head_dim, config.n_embd, config.mlp_hidden)
        choices = (config.norm == "layernorm", ACTIVATIONS[config.mlp], config.mlp_conv or 0)
        numbers = (config.norm_eps, config.logit_softcap or 0.0, *sizes, config.vocab_size, config.block_size, *choices)
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
        taps = None if block.mlp_conv is None else block.mlp_conv.weight[:, 0].T.contiguous()
        return CLayer(
            *matrices, *self._norm(block.ln_1), *self._norm(block.ln_2), *head_norms, self._keep(padded(taps))
        )

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
