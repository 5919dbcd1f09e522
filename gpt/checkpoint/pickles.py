"""Read what `torch.save` wrote, or somebody else made to look like it: nothing of it is executed or inflated."""

import os
import pickletools
import re
from typing import Any, BinaryIO

import torch

from gpt.system.errors import quoted

MAX_DEPTH = 1000
"""Nesting of tuples; `torch.save` nests a few, and from some 50,000 on their hash overflows the stack."""


def load_pickle(file: BinaryIO) -> Any:
    """Return what `torch.save` wrote; nothing of it is executed, and no entry is larger than the file.

    Raises:
        ValueError: it would be executed or inflated, or cannot be read.
    """
    try:
        entries = torch._C.PyTorchFileReader(file)  # torch's own, since two readers of zip may see two archives
        if sum(map(entries.get_record_size, entries.get_all_records())) > file.seek(0, os.SEEK_END):
            raise ValueError("compressed")
        pickled = entries.get_record("data.pkl")
        if b"bytearray" in pickled:
            raise ValueError("bytearray(n), which torch allows, takes n bytes")
        if deepest_tuple(pickled) > MAX_DEPTH:
            raise ValueError("the hash of tuples that are nested deeply overflows the stack")
        file.seek(0)
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # an unpickler raises anything
        wanted = re.search(r"GLOBAL (\S+)", str(error))  # torch's advice around it is to run the file
        reason = f"it would run {quoted(wanted[1])}" if wanted else "it is damaged, or not of torch.save"
        raise ValueError(reason) from None


def deepest_tuple(pickled: bytes) -> int:
    """Return how deeply tuples are nested in the values of a pickle; nothing is built to find out."""
    deepest = 0
    stack: list[int | None] = []  # the depth of each value that would be on the unpickler's stack; None: a mark
    memo: dict[Any, int | None] = {}
    for operation, argument, _ in pickletools.genops(pickled):
        if "PUT" in operation.name:
            memo[argument] = stack[-1]
            continue
        if operation.name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
            continue
        if operation.name == "MARK":
            stack.append(None)
            continue
        if "GET" in operation.name:
            stack.append(memo[argument])
            continue
        depth = max(_taken(operation, stack), default=0)
        if "TUPLE" in operation.name:
            depth += 1
        deepest = max(deepest, depth)
        stack += [depth] * len(operation.stack_after)
    return deepest


def _taken(operation: pickletools.OpcodeInfo, stack: list[int | None]) -> list[int]:
    """Take from a stack what an operation takes: some values, and perhaps all down to the last mark."""
    taken = []
    number = len(operation.stack_before)
    if pickletools.markobject in operation.stack_before:
        number = operation.stack_before.index(pickletools.markobject)
        while (value := stack.pop()) is not None:
            taken.append(value)
    for _ in range(number):
        taken.append(stack.pop() or 0)
    return taken
