"""The processes of a training: one, or several that torchrun started."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeVar

from gpt.system.environment import Launch

if TYPE_CHECKING:  # one process reads its configuration before it loads torch
    from torch import Tensor

T = TypeVar("T")


class World:
    """The processes that train one model together.

    This class is for one process: its methods return at once. `ProcessGroup` is for several, which
    call the same methods in the same order: each call waits for the others.
    """

    def __init__(self, launch: Launch = Launch()) -> None:  # noqa: B008  # frozen
        self.launch = launch
        self.rank = launch.rank
        self.size = launch.size

    @property
    def is_main(self) -> bool:
        """Whether this is the process of rank 0, which alone downloads, writes and reports."""
        return self.rank == 0

    def rank_zero(self, work: Callable[[], T]) -> T:
        """Run `work` in rank 0, and return its result in all processes.

        Its GPTError is raised in rank 0, and a PeerError in the others.
        """
        return work()

    def rank_zero_first(self, work: Callable[[], T]) -> T:
        """Run `work` in rank 0, then in the others, which find the files it has written."""
        return work()

    def together(self) -> AbstractContextManager[None]:
        """Leave this context only if no process failed in it; the work inside may not communicate.

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


def joined(launch: Launch) -> AbstractContextManager[World]:
    """Join the other processes for this context, if there are any; see `connected`."""
    if launch.size == 1:
        return nullcontext(World())
    from gpt.system.distributed.process_group import connected  # slow to import

    return connected(launch)
