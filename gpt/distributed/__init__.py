"""The processes of a training: one, or several that torchrun started."""

from collections.abc import Iterator
from contextlib import contextmanager

from gpt.distributed.world import World
from gpt.system.environment import Launch

__all__ = ["World", "joined"]


@contextmanager
def joined(launch: Launch) -> Iterator[World]:
    """Join the other processes inside this context, if there are any; see `process_group.connected`."""
    if launch.size == 1:
        yield World()
        return
    from gpt.distributed.process_group import connected  # slow to import

    with connected(launch) as group:
        yield group
