"""Trainings by two processes of which one is killed or hangs: the other ends, and both go on as if nothing had been."""

import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from drills.forks import Child, Death, Ending, finish, prepare_to_fork, start_forked
from drills.leftovers import all_runs, lost, make_folder
from gpt.cli import train
from gpt.system.distributed import process_group
from gpt.system.distributed.process_group import ProcessGroup
from patience import PATIENCE

MESSAGES = ("rank_zero", "together", "gather", "all_reduce_sum", "all_reduce_max", "all_reduce_mean")
"""Methods of a process group that wait for the other process."""
ENDED = (0, 1, 2)
"""Exit codes of the process that is left: it was done, lost the other, or never met it."""
Fault = Callable[[int, int], None]
"""Called with the rank and the number of a message before that is sent."""
Pair = tuple[Ending, Ending]


def train_pair(
    folder: Path,
    arguments: list[str],
    deaths: tuple[Death, Death] = (Death(), Death()),
    fault: Fault = lambda rank, message: None,
    patience: float = PATIENCE,
) -> Pair:
    """Train in two processes, as torchrun starts them, which ends both where one ends.

    Args:
        folder: working directory.
        arguments: of the train command.
        deaths: of rank 0 and rank 1.
        fault: see `Fault`.
        patience: seconds that they wait for each other; in use, an hour.
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    pair = [
        start_forked(partial(_run_rank, rank, port, arguments, fault, patience), folder, death, str(rank))
        for rank, death in enumerate(deaths)
    ]
    _end_those_that_hang(pair, patience)
    return finish(pair[0]), finish(pair[1])


def _run_rank(rank: int, port: int, arguments: list[str], fault: Fault, patience: float) -> int:
    place = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()}, MASTER_ADDR="127.0.0.1")
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


def run(folder: Path, full: bool) -> Iterator[tuple[str, str, str]]:
    """Kill either process at its messages or, where it writes, before changes on disk; then let one hang."""
    place = folder / "place"
    prepare_to_fork()
    import torch.distributed.device_mesh
    import torch.distributed.fsdp
    import torch.nn.parallel.distributed  # noqa: F401

    changes = ["model.dropout=0.1", "train.eval_interval=1", "train.keep_last=2", "train.sample_tokens=0"]
    changes += ["run.threads=1", "run.kernels=torch", f"train.max_steps={6 if full else 2}"]
    for method in ("fsdp", "ddp") if full else ("fsdp",):
        arguments = ["--config", "tiny.yaml", "--resume", "auto", *changes, f"run.parallel={method}"]
        undisturbed = make_folder(folder / method)
        endings = train_pair(undisturbed, arguments, fault=partial(_note, undisturbed))
        assert [ending.code for ending in endings] == [0, 0], endings
        expected = all_runs(undisturbed / "runs")

        def attack(name: str, **how: Any) -> Iterator[tuple[str, str, str]]:
            make_folder(place)
            endings = train_pair(place, arguments, **how)  # noqa: B023
            if any(ending.was_killed for ending in endings):
                yield "kills", "", ""
            first, second = train_pair(place, arguments)  # noqa: B023
            wrong = _wrong_ending(endings) + ("" if second.code == 0 else f"it does not continue: {second}")
            yield "runs finished", f"{method}: {name}", wrong + lost(place, first, expected)  # noqa: B023
            shutil.rmtree(place)

        for number in range(1, endings[0].changes, 12) if full else (endings[0].changes * 2 // 3,):
            yield from attack(f"rank 0 before change {number}", deaths=(Death(changes=number), Death()))
        for rank in (0, 1) if full else ():
            messages = (undisturbed / f"messages{rank}").stat().st_size
            for number in range(1, messages + 1, 7):
                yield from attack(
                    f"rank {rank} before message {number}", fault=partial(_send, signal.SIGKILL, rank, number)
                )
            if rank == 1:
                yield from attack("rank 1 hangs", fault=partial(_send, signal.SIGSTOP, 1, messages // 2), patience=5.0)


def _wrong_ending(endings: Pair) -> str:
    """Return what is wrong with how the process that is left ended."""
    for ending in endings:
        if not ending.was_killed and (ending.code not in ENDED or "Traceback" in ending.output):
            return f"the other ended with {ending.code}: {ending.output[-500:]}"
    return "the other did not end by itself" if all(ending.was_killed for ending in endings) else ""


def _note(folder: Path, rank: int, message: int) -> None:
    with (folder / f"messages{rank}").open("ab") as file:
        file.write(b".")


def _send(signum: signal.Signals, rank: int, number: int, own: int, message: int) -> None:
    if (own, message) == (rank, number):
        os.kill(os.getpid(), signum)
