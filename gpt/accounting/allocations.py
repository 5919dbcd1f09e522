"""Bytes that tensors hold while some code runs, seen at the level of PyTorch's operators."""

import weakref
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, UntypedStorage
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class AllocationMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the storages that operators make while it is entered: each once, until it is freed.

    A view adds nothing, since it has the storage of what it views; nor does a tensor from before.
    What an operator needs inside itself and gives back is not seen.

    Attributes:
        live: bytes of the counted storages that are still held.
        peak: most bytes that were live at once, since it was entered or since `restart_peak`.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._known: dict[int, weakref.ref[UntypedStorage]] = {}

    def restart_peak(self) -> None:
        """Look for the peak of what comes from here on."""
        self.peak = self.live

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for tensor in _tensors((args, kwargs)):
            self._remember(tensor.untyped_storage(), 0)  # it was there before; what was counted stays counted
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            self._remember(storage, storage.nbytes())
        return result

    def _remember(self, storage: UntypedStorage, size: int) -> None:
        key = storage._cdata  # of the C++ object, which several Python objects may stand for
        if key in self._known:
            return

        def forget(_: object) -> None:
            self.live -= size
            del self._known[key]

        self._known[key] = weakref.ref(storage, forget)
        self.live += size
        self.peak = max(self.peak, self.live)


class Rehearsal:
    """A context in which the real code runs on tensors that have shapes and no memory.

    Whatever is made inside, models included, is fake; `allocations` counts what it would have held.
    A number read back from a tensor is 0.
    """

    def __init__(self) -> None:
        self.allocations = AllocationMode()
        self._modes = (FakeTensorMode(), self.allocations, _ZeroReads())  # type: ignore[no-untyped-call]

    def __enter__(self) -> Self:
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(kind, error, trace)


class _ZeroReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The model checks its ids, and a fake tensor has no values to check; 0 is an id of every vocabulary."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return 0 if func is torch.ops.aten._local_scalar_dense.default else func(*args, **(kwargs or {}))


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
