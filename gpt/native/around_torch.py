"""What replaces torch's own functions and modules, or is called around them.

Kernels call neither, so that they are used only where there is nothing of that kind.
"""

from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

FUNCTIONS = (
    *("scaled_dot_product_attention", "linear", "rms_norm", "layer_norm"),
    *("gelu", "silu", "relu", "embedding", "dropout"),
)
"""Functions of `torch.nn.functional` by which a model computes."""
MODULES = (nn.Linear, nn.LayerNorm, nn.Embedding, nn.Dropout, nn.Identity)
"""Classes of torch of which a model is made."""
TORCH = str(Path(torch.__file__).parent)
"""The folder of torch's own files."""


def changed_torch() -> str | None:
    """Return what replaces or surrounds torch's functions, as part of a message, or None."""
    for name in FUNCTIONS:
        if not _is_from_torch(getattr(F, name)):
            return f"{name} of torch was replaced"
    for kind in MODULES:
        if not _is_from_torch(kind.forward) or not _is_from_torch(kind.__call__):
            return f"{kind.__name__} of torch was replaced"
    return around_torch()


def around_torch() -> str | None:
    """Return what torch calls around every module or function, as part of a message, or None.

    Training asks this anew in each step, since hooks and modes come and go.
    """
    # torch keeps hooks that it calls for every module in dicts such as `_global_forward_hooks`,
    # which are empty as long as nobody registers one.
    for name, value in vars(nn.modules.module).items():
        is_table_of_hooks = name.startswith("_global_") and "hooks" in name
        if is_table_of_hooks and value:
            return f"torch has {name}"
    modes = [*_get_current_function_mode_stack()]  # type: ignore[no-untyped-call]
    modes += _get_current_dispatch_mode_stack()
    for mode in modes:
        # The mode of `with torch.device(...)` only says where new tensors are made.
        if not isinstance(mode, DeviceContext):
            return f"torch has {mode}"
    return None


def _is_from_torch(function: Any) -> bool:
    """Return whether a function is written in C++, or in a file of torch."""
    if isinstance(function, FunctionType):
        return function.__code__.co_filename.startswith(TORCH)
    return isinstance(function, BuiltinFunctionType)
