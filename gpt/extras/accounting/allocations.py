"""Bytes held by tensors while some code runs, counted at the level of PyTorch's operators."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class AllocationMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the storages that operators allocate inside this context: each once, until it is freed.

    A view adds nothing, since it shares its base's storage; neither does a tensor allocated earlier.
    Scratch memory that an operator allocates and frees itself is not seen.

    Attributes:
        live: bytes of the counted storages that are still held.
        peak: most bytes live at once, since the context was entered or since `restart_peak`.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._known: dict[int, weakref.ref[UntypedStorage]] = {}

    def restart_peak(self) -> None:
        self.peak = self.live

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        for tensor in _tensors((args, kwargs)):
            # allocated earlier; what was counted stays counted
            self._remember(tensor.untyped_storage(), 0)
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            self._remember(storage, storage.nbytes())
        return result

    def _remember(self, storage: UntypedStorage, size: int) -> None:
        key = storage._cdata  # the C++ object's, for which several Python objects may stand
        if key in self._known:
            return

        def forget(_: object) -> None:
            self.live -= size
            del self._known[key]

        self._known[key] = weakref.ref(storage, forget)
        self.live += size
        self.peak = max(self.peak, self.live)


@contextmanager
def rehearsal() -> Iterator[AllocationMode]:
    """Run real code in this context on tensors with shapes but without memory, and count what it would have held.

    Every tensor made inside, a model's included, is fake. Reading a number from a tensor gives 0.
    """
    with FakeTensorMode(), AllocationMode() as allocations, _ZeroReads():  # type: ignore[no-untyped-call]
        yield allocations


class _ZeroReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The model checks token ids, and a fake tensor has no values; 0 is an id of every vocabulary."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return (
            0
            if func is torch.ops.aten._local_scalar_dense.default
            else func(*args, **(kwargs or {}))
        )


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
