"""Copy a model for hooks: new modules around the same parameters."""

from typing import Any

from gpt.model import GPT

NATIVE = "gpt.kernels."
"""Where the classes are that stand in place of those of a model while it trains, and do not call the modules inside."""


def unfused_copy(model: GPT) -> GPT:
    """Return a model with the parameters, buffers, modes and hooks of another, computed operator by operator.

    Hooks and modules of the copy can be changed while other threads use the model itself. Wrappers of compilers and
    native kernels are left out, since they would not call new hooks.
    """
    return _copy(getattr(model, "_orig_mod", model))  # torch.compile wraps the model


def _copy(module: Any) -> Any:
    kind = next(base for base in type(module).__mro__ if not base.__module__.startswith(NATIVE))
    copy: Any = object.__new__(kind)
    state = {name: value.copy() if isinstance(value, dict) else value for name, value in vars(module).items()}
    state.pop("_compiled_call_impl", None)
    state["_modules"] = {name: child and _copy(child) for name, child in module._modules.items()}
    copy.__dict__.update(state)
    return copy
