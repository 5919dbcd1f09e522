"""Keep what a caller has set for all of torch from changing what this package computes.

A default device and autocast hold for a thread, and are set aside while a public function runs. A default dtype holds
for the process and is left alone: tensors of floating point are made with their type.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import torch

P = ParamSpec("P")
R = TypeVar("R")
_NOTHING = nullcontext()


def widest_dtype(device: torch.device) -> torch.dtype:
    """Return the most precise floating-point type of a device: MPS has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


@contextmanager
def own_defaults() -> Iterator[None]:
    """Make tensors on the CPU where no device is named, and leave autocast, inside this context."""
    with ExitStack() as stack:
        if torch.empty(0).device.type != "cpu":  # a context of torch costs time in each operation
            stack.enter_context(torch.device("cpu"))
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def _are_own() -> bool:
    """Return whether nothing is set; asked for every token, so that it must not take a microsecond.

    A default device is a mode of torch's functions.
    """
    return not (
        torch._C._len_torch_function_stack() or torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
    )


def with_own_defaults(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function under `own_defaults`; a generator only while it runs, not where its caller does."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with _NOTHING if _are_own() else own_defaults():
            return function(*args, **kwargs)

    @wraps(function)
    def iterate(*args: P.args, **kwargs: P.kwargs) -> Iterator[Any]:
        items = cast(Iterator[Any], function(*args, **kwargs))
        while True:
            with _NOTHING if _are_own() else own_defaults():
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item

    return cast(Callable[P, R], iterate) if inspect.isgeneratorfunction(function) else call
