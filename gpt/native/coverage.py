"""What the C++ sources know of a model; PyTorch computes models with anything else."""

from collections.abc import Collection
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from gpt.config import ModelConfig
from gpt.model import GPT
from gpt.model.layers import ACTIVATIONS, MLPS
from gpt.model.quantized import BFloat16Linear, QuantizedLinear
from gpt.system.device import meta_device

POSITIONS = ("learned", "sinusoidal", "rope")
NORMS = ("layernorm", "rmsnorm")
"""Values of `model.position` and `model.norm` that the sources know."""
KEYS = frozenset(
    {"n_layer", "n_head", "n_kv_head", "n_embd", "block_size", "vocab_size"}
    | {"dropout", "attention_dropout", "attention", "bias", "norm", "norm_eps", "position"}
    | {"rope_theta", "mlp", "mlp_width", "tie_weights", "qk_norm", "init"}
)
"""Keys of `ModelConfig` that the sources know; others must have their defaults."""
TENSORS = ("weight", "bias", "cos", "sin", "table")
"""Attributes of modules that the sources read."""
SET_AFTER_BUILDING = frozenset({"training"})
"""Attributes that every caller may set: the mode of a module is read when it is used."""
WITHOUT_EFFECT_IN_DECODING = frozenset({"p", "dropout", "_compiled_call_impl"})
"""Attributes that decoding does not read: it has no dropout, and calls no compiled module."""


def uncovered(config: ModelConfig, mlps: Collection[str]) -> str | None:
    """Return the first option that the sources do not know, or None.

    Args:
        mlps: the known values of `model.mlp`.
    """
    # Parts that plugins can add: only those are known that the sources have.
    for key, known in (("position", POSITIONS), ("norm", NORMS), ("mlp", mlps)):
        value = getattr(config, key)
        if value not in known:
            return f"model.{key}={value}"
    # A plugin may give an MLP the name of a shipped activation, and `build_mlp` prefers the MLP.
    if config.mlp in ACTIVATIONS and config.mlp in MLPS:
        return f"model.mlp={config.mlp}, which is both an activation and an MLP"
    for key, field in type(config).model_fields.items():
        value = getattr(config, key)
        if key not in KEYS and value != field.default:
            return f"model.{key}={value}"
    return None


def changed_module(model: GPT, trains: bool = False, built: GPT | None = None) -> str | None:
    """Return the first module, hook or attribute that the configuration would not build, or None.

    Args:
        trains: whether the training kernels ask, which compute the blocks with their dropout. The
            decoder computes the whole model, without dropout.
        built: the model that the configuration builds; None means that it is built here.
    """
    expected_modules = dict((built or _configured(model.config)).named_modules())
    modules = dict(model.named_modules())
    for name in sorted(expected_modules.keys() | modules.keys()):
        # In training PyTorch computes all but the blocks and the dropout before them.
        if trains and not name.startswith(("drop", "h.")):
            continue
        if name not in expected_modules:
            return f"a model with {name}"
        if name not in modules:
            return f"a model without {name}"
        change = _change(name, modules[name], expected_modules[name], trains)
        if change is not None:
            return change
    return None


def changed_tensor(model: nn.Module) -> str | None:
    """Return the first parameter or buffer of a class that may compute something else, or None.

    A subclass of Tensor can replace every operation, which kernels would not notice.
    """
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if type(tensor) not in (nn.Parameter, Tensor):
            return f"{name}, a {type(tensor).__name__}"
    return None


def has_hooks(module: nn.Module) -> bool:
    """Return whether calling a module calls hooks."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def _change(name: str, module: nn.Module, expected: nn.Module, trains: bool) -> str | None:
    """Return how a module differs from the one that the configuration builds, or None.

    The answer ends a message that begins with "does not cover".
    """
    if has_hooks(module):
        return f"hooks, and {name or 'the model'} has one"
    if not _computes_the_same(module, type(expected), trains):
        return f"modules of class {type(module).__name__}"
    if _shapes(module) != _shapes(expected):
        return f"the shapes of {name}"
    package, _, _ = type(expected).__module__.partition(".")
    if package not in ("gpt", "torch"):
        return None  # a plugin's module, with attributes that may have no equality
    attribute = _changed_attribute(module, expected, trains)
    if attribute is None:
        return None
    path = f"{name}.{attribute}" if name else attribute  # the model itself has no name
    return f"{path}, which was changed"


def _changed_attribute(module: nn.Module, expected: nn.Module, trains: bool) -> str | None:
    """Return the first attribute of a module that was set to something else, or None."""
    ignored = SET_AFTER_BUILDING
    if not trains:
        ignored = ignored | WITHOUT_EFFECT_IN_DECODING
    known = vars(expected)
    if type(module) is not type(expected):
        # A native or quantized module has attributes of its own: there is nothing to compare with.
        known = vars(module)
    for key, value in vars(module).items():
        if key in ignored:
            continue
        if callable(value):
            # Functions are compared too: a `forward` that was set hides the method of the class.
            is_changed = key not in known or value != known[key]
        else:
            # The names of torch's own tables, of modules and weights, begin with an underscore.
            # A new value that nothing calls has no effect, so that it counts as unchanged.
            is_changed = not key.startswith("_") and value != known.get(key, value)
        if is_changed:
            return key
    return None


def _computes_the_same(module: nn.Module, kind: type[nn.Module], trains: bool) -> bool:
    """Return whether a module computes what one of class `kind` does.

    In eval mode native and quantized modules compute what the modules that they replace do. A
    subclass is not enough, since it may override any method.
    """
    if type(module) is kind:
        return True
    if trains:
        return False
    if kind is nn.Linear and type(module) in (QuantizedLinear, BFloat16Linear):
        return True
    return type(module).__module__.startswith("gpt.native.training.") and isinstance(module, kind)


def _shapes(module: Any) -> list[torch.Size | None]:
    tensors = [getattr(module, name, None) for name in TENSORS]
    return [None if tensor is None else tensor.shape for tensor in tensors]


@lru_cache(maxsize=8)  # a server has several models at a time, and looks at each often
def _configured(config: ModelConfig) -> GPT:
    """Return what a configuration builds, without memory for its weights."""
    with meta_device():
        return GPT(config)
