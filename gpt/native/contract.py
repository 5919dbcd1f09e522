"""What Python and the C++ libraries share: the values of enumerations, structures and pointers."""

import ctypes
from enum import IntEnum

import torch
from torch import Tensor

BLOCK = 64
"""Number of outputs of a matrix, or of positions of keys, that are stored side by side.

`src/decoding/model.h` has the same number.
"""
Kind = IntEnum("Kind", "FLOAT32 BFLOAT16 INT8 INT4 INT8_TILES", start=0)
"""Types of weights, and of keys and values, in memory; `src/kinds.h` has the same numbers."""
Activation = IntEnum("Activation", "GELU GELU_TANH RELU RELU_SQUARED GATED_SILU", start=0)
"""Activations of a feed-forward network; `src/kinds.h` has the same numbers."""


class _Fact(ctypes.Structure):
    """A number that a library was compiled with, and the name of that number."""

    _fields_ = [("name", ctypes.c_char_p), ("value", ctypes.c_int32)]


def check_facts(library: ctypes.CDLL, *structures: type[ctypes.Structure]) -> None:
    """Check that a library and Python agree on the enumerations of this file and some structures.

    If they did not, C++ would read and write the wrong memory.

    Args:
        structures: the structures that Python and the library pass to each other.

    Raises:
        RuntimeError: a number of an enumeration, or the size of a structure, differs.
    """
    found = _facts_of(library)
    expected: dict[str, int] = {}
    for enumeration in (Kind, Activation):
        expected |= {member.name: member.value for member in enumeration}
    for structure in structures:
        # `CMatrix` in Python is `Matrix` in C++.
        name = structure.__name__.removeprefix("C")
        expected[f"sizeof({name})"] = ctypes.sizeof(structure)
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name):
            raise RuntimeError(
                f"{name} is {found.get(name)} in C++ and {expected.get(name)} in Python"
            )


def _facts_of(library: ctypes.CDLL) -> dict[str, int]:
    """Return the numbers that a library was compiled with, by name.

    The library returns an array of facts. The name of its last entry is a null pointer.
    """
    library.gpt_facts.restype = ctypes.POINTER(_Fact)
    facts = library.gpt_facts()
    found: dict[str, int] = {}
    index = 0
    while facts[index].name is not None:
        found[facts[index].name.decode()] = facts[index].value
        index += 1
    return found


def fields(*groups: tuple[type, str]) -> list[tuple[str, type]]:
    """Return the fields of a structure in the form that ctypes expects.

    Args:
        groups: pairs of a type and the names of its fields in one string, in the order in which the
            structure has them.
    """
    pairs: list[tuple[str, type]] = []
    for kind, names in groups:
        pairs += [(name, kind) for name in names.split()]
    return pairs


def pointer(x: Tensor | None, dtype: torch.dtype) -> ctypes.c_void_p:
    """Return the address of a tensor's memory, or a null pointer for None.

    The caller keeps the tensor alive while C++ uses the address.

    Raises:
        TypeError: the tensor is not a contiguous CPU tensor of this dtype.
    """
    if x is None:
        return ctypes.c_void_p(None)
    # C++ knows neither strides nor devices: it reads adjacent numbers from the computer's memory.
    is_readable_by_c = x.is_contiguous() and x.device.type == "cpu"
    if x.dtype != dtype or not is_readable_by_c:
        raise TypeError(
            f"C reads contiguous {dtype} here, and was given {x.dtype} with strides {x.stride()}"
        )
    return ctypes.c_void_p(x.data_ptr())


def floats(x: Tensor | None) -> ctypes.c_void_p:
    """Return the address of a float32 tensor's memory, or a null pointer."""
    return pointer(x, torch.float32)
