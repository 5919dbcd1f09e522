"""Copy a model for hooks: new modules around the same parameters."""

from typing import Any

from torch import nn

from gpt.model import GPT
from gpt.model.gpt import Block

PLAIN = (Block, nn.Dropout)
"""Classes that native kernels subclass, so as to train without calling the modules inside."""


def plain_copy(model: GPT) -> GPT:
    """Return a model with the parameters, buffers, modes and hooks of another, computed operator by operator.

    Hooks and modules of the copy can be changed while other threads use the model itself. Wrappers of compilers and
    native kernels are left out, since they would not call new hooks.
    """
    return _copy(getattr(model, "_orig_mod", model))  # torch.compile wraps the model


def _copy(module: Any) -> Any:
    kind = next((plain for plain in PLAIN if isinstance(module, plain)), type(module))
    copy = object.__new__(kind)
    state = {name: value.copy() if isinstance(value, dict) else value for name, value in vars(module).items()}
    state.pop("_compiled_call_impl", None)
    state["_modules"] = {name: child and _copy(child) for name, child in module._modules.items()}
    copy.__dict__.update(state)
    return copy
