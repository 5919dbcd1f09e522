"""What is around or in the place of torch's own functions and modules, which kernels would leave out."""

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
"""Of `torch.nn.functional`, by which a model computes."""
MODULES = (nn.Linear, nn.LayerNorm, nn.Embedding, nn.Dropout, nn.Identity)
"""Those that a model is made of."""
PACKAGE = str(Path(torch.__file__).parent)


def changed_torch() -> str | None:
    """Return what is around or in the place of torch's own functions, as part of a message; None: nothing."""
    for name in FUNCTIONS:
        if not _is_of_torch(getattr(F, name)):
            return f"{name} of torch was replaced"
    for kind in MODULES:
        if not _is_of_torch(kind.forward) or not _is_of_torch(kind.__call__):
            return f"{kind.__name__} of torch was replaced"
    return around_torch()


def around_torch() -> str | None:
    """Return what torch calls around every module or function, as part of a message; None: nothing."""
    for name, value in vars(nn.modules.module).items():
        if name.startswith("_global_") and "hooks" in name and value:
            return f"torch has {name}"
    modes = [*_get_current_function_mode_stack()]  # type: ignore[no-untyped-call]
    modes += _get_current_dispatch_mode_stack()
    return next((f"torch has {mode}" for mode in modes if not isinstance(mode, DeviceContext)), None)


def _is_of_torch(function: Any) -> bool:
    if isinstance(function, FunctionType):
        return function.__code__.co_filename.startswith(PACKAGE)
    return isinstance(function, BuiltinFunctionType)
