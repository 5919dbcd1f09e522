"""What processes send and hold, seen at the level of PyTorch's operators."""

import weakref
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

OPERATIONS = {
    "allreduce_": "all-reduce",
    "all_reduce": "all-reduce",
    "_allgather_base_": "all-gather",
    "all_gather_into_tensor": "all-gather",
    "_reduce_scatter_base_": "reduce-scatter",
    "reduce_scatter_tensor": "reduce-scatter",
}


class Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the collectives inside this context: operation, and bytes of all whole tensors.

    Attributes:
        seen: in order.
        peak: most bytes of all tensors that any operator saw, held at once; a storage that is resized counts anew.
    """

    def __init__(self, processes: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[tuple[str, int]] = []
        self.peak = 0
        self._processes = processes
        self._storages: dict[int, weakref.ref[UntypedStorage]] = {}

    def total(self, operation: str) -> int:
        """Bytes of an operation."""
        return sum(nbytes for name, nbytes in self.seen if name == operation)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # its own dispatch first, which calls the collectives
        result = func(*args, **(kwargs or {}))
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if func.namespace in ("c10d", "_c10d_functional") and (name := func._schema.name.split("::")[1]) in OPERATIONS:
            parts = 1 if OPERATIONS[name] == "all-reduce" or len(given) > 1 else self._processes
            self.seen.append((OPERATIONS[name], parts * max(tensor.nbytes for tensor in given)))
        self._look([*given, *(leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor))])
        return result

    def _look(self, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            if not isinstance(tensor, DTensor):
                storage = tensor.untyped_storage()
                self._storages[storage._cdata] = weakref.ref(storage)
        living = {key: storage for key, found in self._storages.items() if (storage := found()) is not None}
        self._storages = {key: self._storages[key] for key in living}
        self.peak = max(self.peak, sum(storage.nbytes() for storage in living.values()))


def held_bytes(tensors: list[Tensor]) -> int:
    """Bytes of the storages of this process's parts of some tensors, each once."""
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in local}
    return sum(storage.nbytes() for storage in storages.values())


def reduce_as_fake_groups_do(replica: torch.nn.parallel.DistributedDataParallel) -> None:
    """Let DDP reduce its buckets by a hook: a fake process group has no results, which DDP's own reduction reads."""

    def hook(_: None, bucket: torch.distributed.GradBucket) -> torch.futures.Future[Tensor]:
        torch.distributed.all_reduce(bucket.buffer())
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    replica.register_comm_hook(None, hook)
