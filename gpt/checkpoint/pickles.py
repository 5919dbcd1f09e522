"""Read files of `torch.save` that a stranger may have made, without running code in them."""

import os
import pickletools
import re
from typing import Any, BinaryIO

import torch

from gpt.system.errors import quoted

MAX_DEPTH = 1000
"""The deepest nesting of tuples that is read.

`torch.save` needs only a few levels. Python hashes nested tuples recursively: some 50,000 levels
overflow the stack and kill the process.
"""


def load_pickle(file: BinaryIO) -> Any:
    """Return the value that `torch.save` wrote into a file, without executing any of its code.

    Raises:
        ValueError: the file would execute code or take more memory than its size, or is damaged.
    """
    # The messages of the ValueErrors inside `try` are for readers of this code: `except` replaces
    # them with one for the user.
    try:
        # The file is a zip archive. It is inspected by torch's own reader: in a malicious archive
        # another reader, such as Python's, may see other entries than `torch.load` does.
        archive = torch._C.PyTorchFileReader(file)
        sizes = [archive.get_record_size(name) for name in archive.get_all_records()]
        file_size = file.seek(0, os.SEEK_END)
        if sum(sizes) > file_size:
            # `torch.save` does not compress. A small compressed file could expand until it fills
            # the memory.
            raise ValueError("compressed")
        pickled = archive.get_record("data.pkl")
        # `torch.load` lets a pickle call `bytearray(n)`, so that a few bytes could fill the memory.
        if b"bytearray" in pickled:
            raise ValueError("bytearray")
        # Python hashes nested tuples recursively, and too many levels would overflow the stack.
        if deepest_tuple(pickled) > MAX_DEPTH:
            raise ValueError("nested too deeply")
        file.seek(0)
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        # `torch.load` can raise any error. If the pickle calls a forbidden function, the message
        # has the text "GLOBAL name", and advises how to run the file all the same. Only the name
        # is taken from it.
        forbidden = re.search(r"GLOBAL (\S+)", str(error))
        if forbidden:
            reason = f"it would run {quoted(forbidden[1])}"
        else:
            reason = "it is damaged, or was not written by torch.save"
        raise ValueError(reason) from None


def deepest_tuple(pickled: bytes) -> int:
    """Return how deeply tuples are nested in a pickle, without building its values.

    A pickle is a program for a machine that has a stack of values, and a memo that stores values
    for later use. This function runs the program, but computes only how deep each value is.
    """
    deepest = 0
    stack: list[int | None] = []  # a depth for each value, and None for each mark
    memo: dict[Any, int | None] = {}
    for operation, argument, _ in pickletools.genops(pickled):
        # PUT stores the top of the stack under a given number, and MEMOIZE under the next one.
        if "PUT" in operation.name:
            memo[argument] = stack[-1]
        elif operation.name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif operation.name == "MARK":
            stack.append(None)
        elif "GET" in operation.name:
            stack.append(memo[argument])
        else:
            # A tuple is deeper by one than the deepest value that it contains. Any other value is
            # as deep as the deepest one that it contains, since a list may lie between two tuples.
            depth = max(_pop_arguments(operation, stack), default=0)
            if "TUPLE" in operation.name:
                depth += 1
            deepest = max(deepest, depth)
            num_results = len(operation.stack_after)  # mostly 1, but 0 for POP and 2 for DUP
            stack.extend([depth] * num_results)
    return deepest


def _pop_arguments(operation: pickletools.OpcodeInfo, stack: list[int | None]) -> list[int]:
    """Pop from a stack the depths of the values that an operation takes, and return them.

    An operation takes a fixed number of values. Some operations first take all values above the
    last mark, and the mark. For APPENDS, `stack_before` is a list, a mark and values: the number of
    fixed values is 1, for the list, which lies below the mark.
    """
    popped = []
    num_fixed = len(operation.stack_before)
    if pickletools.markobject in operation.stack_before:
        num_fixed = operation.stack_before.index(pickletools.markobject)
        value = stack.pop()
        while value is not None:  # a mark is None on this stack
            popped.append(value)
            value = stack.pop()
    for _ in range(num_fixed):
        # A damaged pickle may have a mark in place of a value. A mark has the depth 0.
        popped.append(stack.pop() or 0)
    return popped
