"""Say where the native kernels can run, and how far their results are from exact ones."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from gpt.native.build import find_compiler
from gpt.system.processor import TILES, Processor, supported_processors
from programs import is_ci

TILES_IN_C = Path(__file__).parent / "native/emulated_tiles.h"
EMULATED = [
    *(Processor(f"{lanes} lanes", macros=(f"-DGPT_LANES={lanes}",)) for lanes in (4, 8, 16)),
    Processor(
        "emulated AMX",
        matmul_dtype=torch.bfloat16,
        macros=("-DGPT_LANES=16", TILES, f'-DGPT_EMULATED_TILES="{TILES_IN_C}"'),
    ),
]
"""Processors that any other can act as: with vectors as wide as others have, made of the
instructions that there are, and with the AMX tile unit in plain C++.
"""

PROCESSORS_HERE = [*supported_processors()[:-1], *EMULATED]
"""Every class of processor that native code can be tested for on this machine."""

needs_compiler = pytest.mark.skipif(
    find_compiler() is None and not is_ci(), reason="there is no C++ compiler"
)


def double(x: Tensor) -> Tensor:
    """Return a copy in float64 that gathers a gradient."""
    return x.detach().double().requires_grad_()


def error(found: Tensor, expected: Tensor) -> float:
    """Return the norm of the error, relative to the norm of the expected tensor."""
    difference = found.detach().double() - expected.detach()
    norm = expected.detach().norm().clamp(min=1e-30)  # of zeros, too
    return float(difference.norm() / norm)
