"""Which models the C++ sources can compute; PyTorch computes all others."""

from collections.abc import Collection
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from gpt.config import ModelConfig
from gpt.model import GPT
from gpt.model.layers import ACTIVATIONS, MLPS
from gpt.model.quantized import BFloat16Linear, QuantizedLinear
from gpt.native.around_torch import around_torch
from gpt.system.device import meta_device

POSITIONS = ("learned", "sinusoidal", "rope")
"""Values of `model.position` that the sources can compute."""
NORMS = ("layernorm", "rmsnorm")
"""Values of `model.norm` that the sources can compute."""
KEYS = frozenset(
    {"n_layer", "n_head", "n_kv_head", "n_embd", "block_size", "vocab_size"}
    | {"dropout", "attention_dropout", "attention", "bias", "norm", "norm_eps", "position"}
    | {"rope_theta", "mlp", "mlp_width", "tie_weights", "qk_norm", "init"}
)
"""Keys of `ModelConfig` that the sources take into account; others must have their defaults."""
TENSORS = ("weight", "bias", "cos", "sin", "table")
"""Attributes of modules that the sources read."""
SET_AFTER_BUILDING = frozenset({"training"})
"""Attributes that callers may set at any time: the mode of a module is read when it is used."""
WITHOUT_EFFECT_IN_DECODING = frozenset({"p", "dropout", "_compiled_call_impl"})
"""Attributes without effect in decoding, which has no dropout and calls no compiled module."""


def uncovered_option(config: ModelConfig, mlps: Collection[str]) -> str | None:
    """Return the first option that the C++ sources cannot compute, or None.

    The option ends a message, and looks like "model.norm=mine".

    Args:
        mlps: the values of `model.mlp` that the sources can compute.
    """
    # Plugins can add values of these keys.
    for key, known in (("position", POSITIONS), ("norm", NORMS), ("mlp", mlps)):
        value = getattr(config, key)
        if value not in known:
            return f"model.{key}={value}"
    # A plugin may give an MLP the name of one of the package's activations. The model then has
    # that MLP, and the sources would compute the activation.
    if config.mlp in ACTIVATIONS and config.mlp in MLPS:
        return f"model.mlp={config.mlp}, which is both an activation and an MLP"
    for key, field in type(config).model_fields.items():
        value = getattr(config, key)
        if key not in KEYS and value != field.default:
            return f"model.{key}={value}"
    return None


def changed_module(model: GPT, trains: bool = False, built: GPT | None = None) -> str | None:
    """Return how a model differs from the one that its configuration builds, or None.

    The answer ends a message that begins with "does not cover".

    Args:
        trains: whether the model is for the training kernels, which compute dropout. The decoder
            does not, and covers quantized modules.
        built: the model that the configuration builds; None means that it is built here.
    """
    expected_model = built or _configured(model.config)
    expected_modules = dict(expected_model.named_modules())
    modules = dict(model.named_modules())
    for name in sorted(expected_modules.keys() | modules.keys()):
        if name not in expected_modules:
            return f"a model with {name}"
        if name not in modules:
            return f"a model without {name}"
        change = _change(name, modules[name], expected_modules[name], trains)
        if change is not None:
            return change
    return None


def changed_tensor(model: nn.Module) -> str | None:
    """Return the first parameter or buffer whose class is a subclass of torch's own, or None.

    Such a class can replace any operation on the tensor, but kernels read only its memory.
    """
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if type(tensor) not in (nn.Parameter, Tensor):
            return f"{name}, a {type(tensor).__name__}"
    return None


def has_hooks(module: nn.Module) -> bool:
    """Return whether a module has hooks, which torch calls when it calls the module."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def has_gradient_hooks(parameter: Tensor) -> bool:
    """Return whether a parameter has hooks, which torch calls with its gradient."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def _change(name: str, module: nn.Module, expected: nn.Module, trains: bool) -> str | None:
    """Return how a module differs from the one that the configuration builds, or None.

    The answer ends a message that begins with "does not cover".

    Args:
        name: the module's name in the model; the model itself has an empty name.
    """
    if has_hooks(module):
        return f"hooks, and {name or 'the model'} has one"
    if not _computes_the_same(module, type(expected), trains):
        return f"modules of class {type(module).__name__}"
    if _shapes(module) != _shapes(expected):
        return f"the shapes of {name}"
    package, _, _ = type(expected).__module__.partition(".")
    if package not in ("gpt", "torch"):
        return None  # attributes of a plugin's module may not be comparable by `==`
    attribute = _changed_attribute(module, expected, trains)
    if attribute is None:
        return None
    path = f"{name}.{attribute}" if name else attribute
    return f"{path}, which was changed"


def _changed_attribute(module: nn.Module, expected: nn.Module, trains: bool) -> str | None:
    """Return the first attribute of a module that was changed after it was built, or None."""
    ignored = SET_AFTER_BUILDING
    if not trains:
        ignored = ignored | WITHOUT_EFFECT_IN_DECODING
    expected_values = vars(expected)
    if type(module) is not type(expected):
        # A quantized module has other attributes than the linear layer that it replaces, so that
        # nothing is expected of them. A function that was set on it is noticed nevertheless.
        expected_values = {}
    for key, value in vars(module).items():
        if key in ignored:
            continue
        if callable(value):
            # A new function counts too: a `forward` that is set on a module replaces its method.
            is_changed = key not in expected_values or value != expected_values[key]
        elif key not in expected_values or key.startswith("_"):
            # A new attribute that nothing calls has no effect. It may be a tensor, which could not
            # be compared. Names with an underscore are torch's own, such as its tables of modules.
            is_changed = False
        else:
            is_changed = value != expected_values[key]
        if is_changed:
            return key
    return None


def _computes_the_same(module: nn.Module, kind: type[nn.Module], trains: bool) -> bool:
    """Return whether a module computes the same as a module of class `kind`.

    In eval mode quantized modules compute what the modules that they replace do. A subclass is not
    enough, since it may override any method.
    """
    if type(module) is kind:
        return True
    if trains:
        return False
    return kind is nn.Linear and type(module) in (QuantizedLinear, BFloat16Linear)


def _shapes(module: Any) -> list[torch.Size | None]:
    """Return the shapes of the tensors that the sources read; None for those that are missing."""
    tensors = [getattr(module, name, None) for name in TENSORS]
    return [None if tensor is None else tensor.shape for tensor in tensors]


@lru_cache(maxsize=8)  # a server checks several models, each of them often
def _configured(config: ModelConfig) -> GPT:
    """Return the model that a configuration builds, without memory for its weights."""
    with meta_device():
        return GPT(config)


class ModelWatch:
    """Notices changes of a model between two steps: hooks, modes, replaced modules and tensors.

    A callback of a training may make them. The check is made before each step, so it looks only at
    what changes what a module computes, and at nothing that takes long to compare.
    """

    ATTRIBUTES = ("p", "dropout", "activation", "eps", "forward")
    """Attributes of modules that change what they compute."""

    def __init__(self, model: GPT) -> None:
        self._model = model
        self._modules = list(model.modules())
        self._parameters = list(model.parameters())
        self._state = self._describe()

    def change(self) -> str | None:
        """Return what has changed since the watch began, as part of a message, or None."""
        for module in self._modules:
            if has_hooks(module):
                return f"{type(module).__name__} has a hook"
        for parameter in self._parameters:
            if has_gradient_hooks(parameter):
                return "a parameter has a hook"
        if len({module.training for module in self._modules}) > 1:
            return "some modules are in training mode, and others are not"
        if self._describe() != self._state:
            return "a module of the model was changed"
        return around_torch()

    def _describe(self) -> list[tuple[Any, ...]]:
        """Return, for each module, everything that changes what it computes.

        The values of weights are left out: the kernels read them anew in each step.
        """
        described: list[tuple[Any, ...]] = []
        for module in self._modules:
            attributes = vars(module)
            values = [attributes.get(name) for name in self.ATTRIBUTES]
            # Modules and tensors are compared by identity, since `==` would compare numbers.
            children = tuple(map(id, module._modules.values()))
            tensors = (*module._parameters.values(), *module._buffers.values())
            tensor_ids = tuple(map(id, tensors))
            # A missing bias is None, which has no dtype.
            dtypes = tuple(getattr(tensor, "dtype", None) for tensor in tensors)
            described.append((type(module), children, tensor_ids, dtypes, *values))
        return described
