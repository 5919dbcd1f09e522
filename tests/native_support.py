"""Where the native kernels can run."""

import pytest
import torch
from torch import Tensor

from gpt.kernels.build import find_compiler
from gpt.processor import Processor, supported_processors

EMULATED = [
    Processor(f"{lanes} lanes, {str(dtype)[6:]}", (f"-DGPT_LANES={lanes}",), dtype)
    for lanes, dtype in ((4, torch.float32), (8, torch.float32), (16, torch.float32), (16, torch.bfloat16))
]
"""What any processor can act as: vectors as wide as others have them, made of whatever instructions there are."""

PROCESSORS_HERE = [*supported_processors()[:-1], *EMULATED]
"""Every class of processor that native code can be tested for on this machine."""

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="there is no C++ compiler")


def double(x: Tensor) -> Tensor:
    """Return a copy in float64 that wants a gradient."""
    return x.detach().double().requires_grad_()


def error(found: Tensor, right: Tensor) -> float:
    """Return the norm of the error, relative to the norm of what is right."""
    return float((found.detach().double() - right.detach()).norm() / right.detach().norm().clamp(min=1e-30))
