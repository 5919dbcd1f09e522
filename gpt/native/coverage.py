"""What the C++ sources know of a model. Whatever is not listed here is computed by PyTorch."""

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
KEYS = frozenset(
    {"n_layer", "n_head", "n_kv_head", "n_embd", "block_size", "vocab_size", "dropout", "attention_dropout"}
    | {"attention", "bias", "norm", "norm_eps", "position", "rope_theta", "mlp", "mlp_width", "tie_weights", "qk_norm"}
    | {"init"}
)
"""Keys of `ModelConfig` that are known; others must have their defaults."""


def uncovered(config: ModelConfig, mlps: Collection[str]) -> str | None:
    """Return the first option that the sources do not know, `mlps` being the known values of `model.mlp`; or None."""
    for key, known in (("position", POSITIONS), ("norm", NORMS), ("mlp", mlps)):
        if getattr(config, key) not in known:
            return f"model.{key}={getattr(config, key)}"
    if config.mlp in ACTIVATIONS and config.mlp in MLPS:
        return f"model.mlp={config.mlp}, which is both an activation and an MLP"
    for key, field in type(config).model_fields.items():
        if key not in KEYS and getattr(config, key) != field.default:
            return f"model.{key}={getattr(config, key)}"
    return None


def changed_module(model: GPT, trains: bool = False, built: GPT | None = None) -> str | None:
    """Return the first module, hook or attribute that is not what the configuration builds; None: all are.

    If the model `trains`, only the blocks matter, dropout too; otherwise the whole model, but no dropout.
    """
    configured, modules = dict((built or _configured(model.config)).named_modules()), dict(model.named_modules())
    for name in sorted(configured.keys() | modules.keys()):
        if trains and not name.startswith(("drop", "h.")):
            continue
        if name not in modules or name not in configured:
            return f"a model {'with' if name in modules else 'without'} {name}"
        module, expected = modules[name], configured[name]
        if has_hooks(module):
            return f"hooks, and {name or 'the model'} has one"
        if not _is_equivalent(module, type(expected), trains):
            return f"modules of class {type(module).__name__}"
        if _shapes(module) != _shapes(expected):
            return f"the shapes of {name}"
        if type(expected).__module__.partition(".")[0] not in ("gpt", "torch"):
            continue  # a plugin's, with attributes that may have no equality
        ignored = {"training"} if trains else {"training", "p", "dropout", "_compiled_call_impl"}
        known = vars(expected) if type(module) is type(expected) else vars(module)
        for key, value in vars(module).items():
            is_own = key not in known if callable(value) else key[0] != "_" and value != known.get(key, value)
            if key not in ignored and (is_own or (callable(value) and value != known[key])):
                return f"{name}.{key}".lstrip(".") + ", which was changed"
    return None


def changed_tensor(model: nn.Module) -> str | None:
    """Return the first parameter or buffer of a class that may compute something else; None: there is none."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    other = (f"{name}, a {type(x).__name__}" for name, x in tensors if type(x) not in (nn.Parameter, Tensor))
    return next(other, None)


def has_hooks(module: nn.Module) -> bool:
    """Return whether calling a module calls hooks."""
    return any(getattr(module, f"_{pass_}{kind}hooks") for pass_ in ("forward", "backward") for kind in ("_", "_pre_"))


def _is_equivalent(module: nn.Module, kind: type[nn.Module], trains: bool) -> bool:
    """Return whether a module computes the same as `kind`: in eval mode native and quantized ones do."""
    if type(module) is kind or trains:
        return type(module) is kind
    is_native = type(module).__module__.startswith("gpt.native.training.") and isinstance(module, kind)
    return is_native or (kind is nn.Linear and type(module) in (QuantizedLinear, BFloat16Linear))


def _shapes(module: Any) -> list[torch.Size | None]:
    tensors = (getattr(module, name, None) for name in ("weight", "bias", "cos", "sin", "table"))
    return [None if tensor is None else tensor.shape for tensor in tensors]


@lru_cache(maxsize=8)
def _configured(config: ModelConfig) -> GPT:
    with meta_device():
        return GPT(config)
