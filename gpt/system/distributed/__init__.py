"""The processes of a training: one, or several that torchrun started."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from gpt.system.environment import Launch

if TYPE_CHECKING:  # one process reads its configuration before it loads torch
    from torch import Tensor
    from torch.distributed.tensor import DTensor

T = TypeVar("T")


class World:
    """The processes that train one model together; a `World` itself has one, and its methods return at once.

    All processes call the same methods in the same order: each call waits for the others.
    """

    def __init__(self, launch: Launch = Launch()) -> None:  # noqa: B008  # frozen
        self.launch, self.rank, self.size = launch, launch.rank, launch.size

    @property
    def is_main(self) -> bool:
        """Rank 0 alone downloads, writes and reports."""
        return self.rank == 0

    def rank_zero(self, work: Callable[[], T]) -> T:
        """Run `work` in rank 0; return its result in all processes; its GPTError is a PeerError in the others."""
        return work()

    def rank_zero_first(self, work: Callable[[], T]) -> T:
        """Run `work` in rank 0, then in the others, which find the files it has written."""
        return work()

    def together(self) -> AbstractContextManager[None]:
        """Leave this context only if no process failed in it; the work inside does not communicate.

        The GPTError of the lowest rank is raised there, and a PeerError in the others.
        """
        return nullcontext()

    def all_reduce_sum(self, value: int) -> int:
        return value

    def all_reduce_max(self, value: int) -> int:
        return value

    def all_reduce_mean(self, tensor: "Tensor") -> "Tensor":
        return tensor

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, by rank."""
        return [value]

    def gather_to_rank_zero(self, tree: Any) -> Any:
        """Gather sharded tensors in nested dicts and lists onto the CPU of rank 0; in the others they become None."""
        return tree


def joined(launch: Launch) -> AbstractContextManager[World]:
    """Join the other processes inside this context, if there are any; see `process_group.connected`."""
    if launch.size == 1:
        return nullcontext(World())
    from gpt.system.distributed.process_group import connected  # slow to import

    return connected(launch)


# --- tensors of which each process has a part: FSDP2's parameters, their gradients and their optimizer state ---
# The functions have the names of DTensor's methods. Each returns a tensor that is not sharded as it is.


def is_sharded(tensor: object) -> "TypeGuard[DTensor]":
    """Return whether this is a DTensor; where nothing has imported that class, which is slow, there is none."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def to_local(tensor: "Tensor") -> "Tensor":
    """Return this process's part, in the same memory."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def from_local(part: "Tensor", like: "Tensor") -> "Tensor":
    """Return the tensor of which every process gives its part, sharded as `like`."""
    if not is_sharded(like):
        return part
    return type(like).from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def full_tensor(tensor: "Tensor") -> "Tensor":
    """Return the whole tensor; all processes call this, and each gets a copy."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def shard_like(tensor: "Tensor", like: "Tensor") -> "Tensor":
    """Return this process's part of a whole tensor, which every process has, as `like` is sharded."""
    if not is_sharded(like):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
