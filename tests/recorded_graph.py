"""A stand-in for a CUDA graph on any device: what was captured runs again on the same memory, the Python code does not.

As with a real graph, a tensor that takes the place of another one after the capture is not seen, and a result is
written where the captured one is.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class RecordedGraph(TorchDispatchMode):
    """Operations with their operands and results; `replays` counts those of all graphs."""

    replays = 0

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Tensor]]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        results = func(*args, **kwargs)
        self._calls.append((func, args, kwargs, _tensors(results)))
        return results

    def poison(self) -> None:
        """Spoil the results: a capture computes nothing."""
        for _, args, kwargs, results in self._calls:
            for result in _own(results, (args, kwargs)):
                result.fill_(torch.nan if result.is_floating_point() else 0)

    def replay(self) -> None:
        """Run the operations again."""
        RecordedGraph.replays += 1
        for func, args, kwargs, results in self._calls:
            again = _tensors(func(*args, **kwargs))
            for old, new in zip(results, again, strict=True):
                if _own([old], (args, kwargs)):
                    old.copy_(new)


@contextmanager
def capture(graph: RecordedGraph, **options: Any) -> Iterator[None]:
    """Stand in for `torch.cuda.graph`."""
    with graph:
        yield
    graph.poison()


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _own(results: list[Tensor], operands: Any) -> list[Tensor]:
    """Those with memory of their own: the others are views, or operands that were written to."""
    known = {tensor.untyped_storage()._cdata for tensor in _tensors(operands)}
    return [result for result in results if result.untyped_storage()._cdata not in known]
