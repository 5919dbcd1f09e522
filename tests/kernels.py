"""Where the native kernels can run."""

import pytest
import torch

from gpt.native.build import find_compiler
from gpt.native.training import products_here


def _products() -> list[str]:
    """What the system gives, too."""
    return [name for name in products_here() if name != "AMX tiles" or torch.cpu._init_amx()]


PRODUCTS_HERE = _products()
"""What products the training kernels can be made with; each is tested."""


def _missing() -> str | None:
    if not PRODUCTS_HERE:
        return "this processor has neither AMX tiles nor AVX-512 products of bfloat16"
    return None if find_compiler() else "there is no C++ compiler"


NO_NATIVE = _missing()
"""Why the kernels cannot run here; None where they must."""

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="there is no C++ compiler")

needs_native = pytest.mark.skipif(NO_NATIVE is not None, reason=NO_NATIVE or "")
