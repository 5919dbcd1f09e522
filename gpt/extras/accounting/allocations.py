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
    """Counts the storages that operators allocate in this context: each once, until it is freed.

    A view adds nothing, since it shares the storage of its base. A tensor that was allocated before
    the context adds nothing either. Scratch memory that an operator allocates and frees itself is
    not seen.

    Attributes:
        live: bytes of the counted storages that are still held.
        peak: most bytes live at once, since the context was entered or since `restart_peak`.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.peak = 0
        self._known: dict[int, weakref.ref[UntypedStorage]] = {}

    def restart_peak(self) -> None:
        """Count the peak from now on."""
        self.peak = self.live

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        # An input that is not known yet was allocated before the context: it counts 0 bytes, also
        # where the operator returns it.
        for tensor in _tensors((args, kwargs)):
            self._remember(tensor.untyped_storage(), 0)
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            self._remember(storage, storage.nbytes())
        return result

    def _remember(self, storage: UntypedStorage, size: int) -> None:
        """Count `size` bytes for a storage that is not known yet, until it is freed."""
        key = storage._cdata  # the address of the C++ object, which several Python objects share
        if key in self._known:
            return
        # The callback runs when the storage is freed; another one may then get its address.
        self._known[key] = weakref.ref(storage, lambda _: self._forget(key, size))
        self.live += size
        self.peak = max(self.peak, self.live)

    def _forget(self, key: int, size: int) -> None:
        self.live -= size
        del self._known[key]


@contextmanager
def rehearsal() -> Iterator[AllocationMode]:
    """Run real code in this context on tensors without memory, and count what it would allocate.

    Every tensor that is made inside, a model's included, is fake: it has a shape, but no values.
    Reading a number from it gives 0.
    """
    with FakeTensorMode(), AllocationMode() as allocations, _ZeroReads():  # type: ignore[no-untyped-call]
        yield allocations


class _ZeroReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes every number that is read from a tensor 0, which a fake tensor could not give.

    The model reads token ids to check them, and 0 is an id of every vocabulary.
    """

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:  # what `Tensor.item` calls
            return 0
        return func(*args, **(kwargs or {}))


def _tensors(values: Any) -> list[Tensor]:
    """Return the tensors in nested lists, tuples and dicts."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
