"""Run functions in processes that die where a drill wants it.

They are forked from this one, which has imported torch.
"""

import mmap
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tqdm import tqdm

from gpt.system.signals import WATCHED
from patience import PATIENCE

CHANGE_EVENTS = {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "shutil.rmtree"}
"""Python's audit events of calls that change a folder, besides `open` for writing."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
"""Flags of files that are opened for writing."""


@dataclass(frozen=True)
class Death:
    """When a process is stopped, and by which signal.

    Attributes:
        changes: before the change on disk of this number.
        seconds: so many seconds after its start.
        number: the signal.
        file_bytes: in the write that would make a file larger than this; its first bytes are
            written.
    """

    changes: int | None = None
    seconds: float | None = None
    number: signal.Signals = signal.SIGKILL
    file_bytes: int | None = None


@dataclass(frozen=True)
class Ending:
    """How a process ended.

    Attributes:
        code: its exit code, negative after a signal.
        changes: how many changes on disk it made or began.
        output: what it printed.
    """

    code: int
    changes: int
    output: str

    @property
    def was_killed(self) -> bool:
        return self.code in (-signal.SIGKILL, -signal.SIGXFSZ)


def prepare_to_fork() -> None:
    """Import what children need, and set torch to one thread, since a child has none of its
    parent's threads.
    """
    import torch._dynamo  # torch.optim imports it, which takes two seconds
    import torch.utils.tensorboard

    from gpt.cli import evaluate, export, import_model, prepare_data, quantize, sample, train  # noqa: F401

    torch.set_num_threads(1)
    import gpt.training.monitor
    import gpt.training.train
    import gpt.training.trainer

    # The measurement would take half a second at every start.
    setattr(gpt.training.monitor, "measure_matmul_rate", lambda device, dtype: 1e9)  # noqa: B010


@dataclass(frozen=True)
class Child:
    """A process that runs.

    Attributes:
        log: the file of its output.
        changes: memory that it shares with its parent, for the number of its changes on disk.
    """

    pid: int
    log: Path
    death: Death
    changes: mmap.mmap


def start_forked(
    call: Callable[[], int], folder: Path, death: Death = Death(), name: str = ""
) -> Child:
    """Run a function in a child process with `folder` as its working directory.

    `name` differs between children.
    """
    log = folder / f".output{name}"
    log.touch()
    changes = mmap.mmap(-1, 8)  # room for one integer
    # blocked until the child has its own handlers: a program that is started is never interrupted
    # before
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    pid = os.fork()
    if pid == 0:
        end_with(lambda: _run_child(call, folder, log, death, changes))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
    return Child(pid, log, death, changes)


def finish(child: Child) -> Ending:
    """Wait for a child's end.

    After the seconds of its `Death` it gets the signal, and after PATIENCE SIGKILL.
    """
    number = signal.SIGKILL
    seconds = PATIENCE
    if child.death.seconds is not None:
        number = child.death.number
        seconds = child.death.seconds
    deadline = time.monotonic() + seconds
    while True:
        pid, status, _ = os.wait4(child.pid, os.WNOHANG)
        if pid != 0:
            break
        if time.monotonic() >= deadline:
            os.kill(child.pid, number)
            number = signal.SIGKILL
            deadline += PATIENCE
        time.sleep(0.001)
    output = child.log.read_text(encoding="utf-8", errors="replace")
    child.log.unlink()
    changes = int.from_bytes(child.changes[:], "little")
    return Ending(os.waitstatus_to_exitcode(status), changes, output)


def run_forked(call: Callable[[], int], folder: Path, death: Death = Death()) -> Ending:
    """Run a function in a child process with `folder` as its working directory, and stop it as
    `death` says.
    """
    return finish(start_forked(call, folder, death))


def end_with(call: Callable[[], int]) -> NoReturn:
    """Call a function, and end this process with its exit code, without the cleanup of its parent's
    objects.
    """
    code = 70  # of an exception: EX_SOFTWARE of <sysexits.h>
    try:
        code = call()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        os._exit(code)


def _run_child(
    call: Callable[[], int], folder: Path, log: Path, death: Death, changes: mmap.mmap
) -> int:
    """Call a function in the child, so that it dies as `death` says."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.chdir(folder)
    # the inherited lock is shared with other children: one that was killed may hold it for ever
    tqdm.set_lock(threading.RLock())
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as gpt.cli.start does
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
    _count_changes(death, changes)
    if death.file_bytes is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the signal would write a core dump
        resource.setrlimit(resource.RLIMIT_FSIZE, (death.file_bytes, death.file_bytes))
    return call()


def _count_changes(death: Death, changes: mmap.mmap) -> None:
    """Count calls that change files, and die before the one of `death`.

    A flush to disk counts, too, but is not made: it is slow, and a process that is killed loses
    nothing without it.
    """
    count = 0

    def count_change() -> None:
        nonlocal count
        count += 1
        changes[:] = count.to_bytes(8, "little")
        if count == death.changes:
            os.kill(os.getpid(), death.number)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        is_change = event in CHANGE_EVENTS
        if event == "open":
            _, _, flags = arguments
            is_change = isinstance(flags, int) and bool(flags & WRITING)
        if is_change:
            count_change()

    setattr(os, "fsync", lambda handle: count_change())  # noqa: B010 - of another type
    sys.addaudithook(hook)
