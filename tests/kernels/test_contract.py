"""What Python and the libraries have to agree on."""

import ctypes
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from native_support import needs_compiler

from gpt.kernels import contract
from gpt.kernels.contract import Activation, Kind, check_facts, fields, pointer
from gpt.kernels.decoding.c_structs import STRUCTURES, CLayer, CMatrix
from gpt.kernels.decoding.engine import load_engine
from gpt.kernels.training.bindings import load_kernels
from gpt.system.environment import read_settings
from gpt.system.processor import supported_processors


class CLonger(ctypes.Structure):
    _fields_ = fields((CMatrix, "qkv"), (ctypes.c_float, "eps"))


CLonger.__name__ = "CMatrix"
MOVED = [SimpleNamespace(name=kind.name, value=kind.value + (kind == Activation.RELU)) for kind in Activation]
SHORTER = [kind for kind in Kind if kind != Kind.INT4]
SIZES = {structure: ctypes.sizeof(structure) for structure in (CMatrix, CLonger, CLayer)}


@needs_compiler
@pytest.mark.parametrize(
    ("structures", "changed", "message"),
    [
        ([*STRUCTURES, CLonger], {}, f"sizeof(Matrix) is {SIZES[CMatrix]} in C++ and {SIZES[CLonger]} in Python"),
        (set(STRUCTURES) - {CLayer}, {}, f"sizeof(Layer) is {SIZES[CLayer]} in C++ and None in Python"),
        (STRUCTURES, {"Activation": MOVED}, "RELU is 2 in C++ and 3 in Python"),
        (STRUCTURES, {"Kind": SHORTER}, "INT4 is 3 in C++ and None in Python"),
    ],
    ids=["longer", "missing", "moved", "shorter"],
)
def test_a_difference_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, structures: Any, changed: dict[str, Any], message: str
) -> None:
    library = load_engine(read_settings())[0]
    check_facts(library, *STRUCTURES)
    for name, numbers in changed.items():
        monkeypatch.setattr(contract, name, numbers)
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
        check_facts(library, *structures)


@needs_compiler
def test_both_libraries_are_compared_when_they_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, processor = read_settings(), supported_processors()[0]
    monkeypatch.setattr(contract, "Kind", SHORTER)
    with pytest.raises(RuntimeError, match=r"^INT4 is 3 in C\+\+"):
        load_engine(settings)
    with pytest.raises(RuntimeError, match=r"^INT4 is 3 in C\+\+"):
        load_kernels(processor.matmul_dtype, settings)


WRONG = [torch.ones(2, 3).double(), torch.ones(2, 3).mT, torch.ones(2, 3, device="meta")]


@pytest.mark.parametrize("x", WRONG, ids=["type", "order", "device"])
def test_a_tensor_that_c_would_read_as_something_else_is_refused(x: torch.Tensor) -> None:
    with pytest.raises(TypeError, match=r"^C reads contiguous torch\.float32 here, and was given "):
        pointer(x, torch.float32)
