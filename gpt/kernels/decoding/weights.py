"""Lay out a model's weights for the C++ engine of `gpt.kernels`."""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from gpt.config import ModelConfig
from gpt.errors import DeviceError
from gpt.kernels.coverage import uncovered, unknown_parameter
from gpt.kernels.decoding.c_structs import ACTIVATIONS
from gpt.kernels.decoding.layout import LayerWeights, Matrix, Weights, padded
from gpt.model import GPT
from gpt.model.gpt import Block
from gpt.model.meta import meta_device
from gpt.model.positions import LearnedPositions, Rotary, SinusoidalPositions
from gpt.model.quantized import BFloat16Linear, QuantizedLinear
from gpt.processor import Processor

TILES = "-mamx-int8"
"""Compiler flag of processors that multiply integers in tiles."""
IRRELEVANT = {"training", "p", "dropout"}
"""Attributes of modules that have no effect in eval mode."""


def lay_out_weights(model: GPT, processor: Processor | None = None) -> Weights:
    """Return a copy of the weights of a model in eval mode, in the layout that a processor wants; None: the common one.

    Raises:
        DeviceError: the model is not on the CPU, or differs from what its configuration builds.
    """
    check_native_support(model)
    rotation: Any = model.rotation
    weights = Weights(
        model.config,
        _floats(model.wte.weight),
        _added_positions(model.wpe),
        (_floats(rotation.cos), _floats(rotation.sin)) if isinstance(rotation, Rotary) else None,
        [_layer(block) for block in model.h],  # type: ignore[arg-type]
        _norm(model.ln_f),
        _matrix(model.lm_head),
    )
    return weights.in_tiles() if processor is not None and TILES in processor.flags else weights


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


def _layer(block: Block) -> LayerWeights:
    attn: Any = block.attn
    mlp: Any = block.mlp
    has_head_norms = not isinstance(attn.q_norm, nn.Identity)
    return LayerWeights(
        qkv=_matrix(attn.c_q, attn.c_k, attn.c_v),
        projection=_matrix(attn.c_proj),
        gate=_matrix(mlp.c_gate) if hasattr(mlp, "c_gate") else None,
        up=_matrix(mlp.c_fc),
        down=_matrix(mlp.c_proj),
        norms=(*_norm(block.ln_1), *_norm(block.ln_2)),
        head_norms=(_floats(attn.q_norm.weight), _floats(attn.k_norm.weight)) if has_head_norms else None,
        conv=None if block.mlp_conv is None else padded(block.mlp_conv.weight[:, 0].T.contiguous()),
    )


def _matrix(*layers: Any) -> Matrix:
    """Return linear layers that share their input as one matrix."""
    if len({type(layer) for layer in layers}) > 1:
        raise DeviceError("the native backend needs queries, keys and values in the same format")
    biases = [layer.bias.detach().float() for layer in layers if layer.bias is not None]
    bias = torch.cat(biases) if biases else None
    if isinstance(layers[0], QuantizedLinear):
        integers, scales = (torch.cat([getattr(layer, name) for layer in layers]) for name in ("unpacked", "scales"))
        return Matrix.from_integers(integers, scales, bias, layers[0].bits)
    if isinstance(layers[0], BFloat16Linear):
        return Matrix.from_floats(torch.cat([layer.rounded for layer in layers]), bias)
    return Matrix.from_floats(torch.cat([layer.weight.detach().float() for layer in layers]), bias)


def _norm(norm: nn.Module) -> tuple[Tensor, Tensor | None]:
    parts: Any = norm
    gain = padded(parts.weight)
    assert gain is not None
    return gain, padded(getattr(parts, "bias", None))


def _added_positions(module: nn.Module | None) -> Tensor | None:
    if isinstance(module, LearnedPositions):
        return _floats(module.weight)
    return _floats(module.table) if isinstance(module, SinusoidalPositions) else None


def _floats(x: Tensor) -> Tensor:
    return x.detach().to(torch.float32, copy=True).contiguous()
