"""Two processes that train together, forked, of which one may die or hang at any of its messages to the other."""

import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from drills.forks import Child, Death, Ending, finish, start_forked
from gpt.cli import train
from gpt.distributed import process_group
from gpt.distributed.process_group import ProcessGroup
from patience import PATIENCE

MESSAGES = ("rank_zero", "together", "gather", "all_reduce_sum", "all_reduce_max", "all_reduce_mean")
"""Methods that wait for the other process."""


def import_distributed() -> None:
    """Import what ranks need before they are forked."""
    import torch.distributed.device_mesh
    import torch.distributed.fsdp
    import torch.nn.parallel.distributed  # noqa: F401


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def train_pair(
    folder: Path,
    arguments: list[str],
    deaths: tuple[Death, Death] = (Death(), Death()),
    fault: Callable[[int, int], None] = lambda rank, message: None,
    patience: float = PATIENCE,
) -> tuple[Ending, Ending]:
    """Train in two processes, as torchrun starts them, which ends both where one ends.

    Args:
        folder: working directory.
        arguments: of the train command.
        deaths: of rank 0 and rank 1.
        fault: called with the rank and the number of a message before that is sent.
        patience: seconds that they wait for each other; in use, an hour.
    """
    port = free_port()
    pair = [
        start_forked(lambda rank=rank: run_rank(rank, port, arguments, fault, patience), folder, death, str(rank))
        for rank, death in enumerate(deaths)
    ]
    _end_those_that_hang(pair, patience)
    return finish(pair[0]), finish(pair[1])


def run_rank(
    rank: int,
    port: int,
    arguments: list[str],
    fault: Callable[[int, int], None] = lambda rank, message: None,
    patience: float = PATIENCE,
) -> int:
    """Train as one of two processes, in a child."""
    place = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2}
    os.environ.update({name: str(value) for name, value in place.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    process_group.TIMEOUT = timedelta(seconds=patience)
    count = 0

    def faulty(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal count
            count += 1
            fault(rank, count)
            return method(*arguments)

        return call

    for name in MESSAGES:
        setattr(ProcessGroup, name, faulty(getattr(ProcessGroup, name)))
    return train.main(arguments)


def _end_those_that_hang(pair: list[Child], patience: float) -> None:
    """Kill what still runs a while after the other has ended, as torchrun does."""
    while all(_runs(child) for child in pair):
        time.sleep(0.01)
    end = time.monotonic() + patience
    while any(_runs(child) for child in pair):
        if time.monotonic() > end:
            for child in pair:
                with suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)
        time.sleep(0.01)


def _runs(child: Child) -> bool:
    """Return whether a child has not ended; it stays to be waited for."""
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
