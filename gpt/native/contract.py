"""What Python and the C++ libraries have to agree on: numbers of choices, structures, and what a pointer points to."""

import ctypes
from enum import IntEnum
from itertools import count, takewhile

import torch
from torch import Tensor

Kind = IntEnum("Kind", "FLOAT32 BFLOAT16 INT8 INT4 INT8_TILES", start=0)
"""Types of weights, and of keys and values, in memory: as in `src/kinds.h`."""
Activation = IntEnum("Activation", "GELU GELU_TANH RELU RELU_SQUARED GATED_SILU", start=0)
"""Activations of a feed-forward network: as in `src/kinds.h`."""


class _Fact(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("value", ctypes.c_int32)]


def check_facts(library: ctypes.CDLL, *structures: type[ctypes.Structure]) -> None:
    """Compare the numbers of choices and the sizes of structures with those that a library was compiled with."""
    library.gpt_facts.restype = ctypes.POINTER(_Fact)
    facts = map(library.gpt_facts().__getitem__, count())
    found = {fact.name.decode(): fact.value for fact in takewhile(lambda fact: fact.name, facts)}
    expected = {member.name: member.value for numbers in (Kind, Activation) for member in numbers}
    # a structure's name in C++ is that in Python without its `C`
    expected |= {f"sizeof({each.__name__.removeprefix('C')})": ctypes.sizeof(each) for each in structures}
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name):
            raise RuntimeError(f"{name} is {found.get(name)} in C++ and {expected.get(name)} in Python")


def fields(*groups: tuple[type, str]) -> list[tuple[str, type]]:
    """Return the fields of a structure from types, each with the names of its fields."""
    return [(name, kind) for kind, names in groups for name in names.split()]


def pointer(x: Tensor | None, dtype: torch.dtype) -> ctypes.c_void_p:
    """Return the address of a tensor's memory, which the caller keeps alive; None becomes a null pointer."""
    if x is None:
        return ctypes.c_void_p(None)
    if x.dtype != dtype or not x.is_contiguous() or x.device.type != "cpu":
        raise TypeError(f"C reads contiguous {dtype} here, and was given {x.dtype} with strides {x.stride()}")
    return ctypes.c_void_p(x.data_ptr())


def floats(x: Tensor | None) -> ctypes.c_void_p:
    return pointer(x, torch.float32)
