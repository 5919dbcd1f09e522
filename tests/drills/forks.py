"""Processes that die where a drill wants it, forked from this one, which has imported torch already."""

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

CHANGES = {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "shutil.rmtree"}
"""Audit events of the calls that change a folder, besides `open` for writing."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(frozen=True)
class Death:
    """How a process is stopped.

    Attributes:
        changes: before it changes anything on disk for this time.
        seconds: after so long.
        number: by this signal.
        file_bytes: in a write that would make a file larger than this, of which the first bytes are written.
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
    """Import what children need, and set torch to one thread: a child has none of its parent's threads."""
    import torch._dynamo  # by torch.optim, for two seconds
    import torch.utils.tensorboard

    from gpt.cli import evaluate, export, import_model, prepare_data, quantize, sample, train  # noqa: F401

    torch.set_num_threads(1)
    import gpt.training.train
    import gpt.training.trainer

    gpt.training.monitor.measure_matmul_rate = lambda device, dtype: 1e9  # half a second at every start


@dataclass(frozen=True)
class Child:
    pid: int
    log: Path
    death: Death
    changes: mmap.mmap


def start_forked(call: Callable[[], int], folder: Path, death: Death = Death(), name: str = "") -> Child:
    """Run a function in a child process with `folder` as its working directory; `name` differs between children."""
    log = folder / f".output{name}"
    log.touch()
    changes = mmap.mmap(-1, 8)
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)  # a process that is started has no half of a fork to interrupt
    pid = os.fork()
    if pid == 0:
        end_with(lambda: _be_the_child(call, folder, log, death, changes))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
    return Child(pid, log, death, changes)


def finish(child: Child) -> Ending:
    """Wait for a child's end, for which its `Death` and, when patience ends, SIGKILL care."""
    is_timed = child.death.seconds is not None
    number = child.death.number if is_timed else signal.SIGKILL
    end = time.monotonic() + (child.death.seconds if is_timed else PATIENCE)
    while not (ended := os.wait4(child.pid, os.WNOHANG))[0]:
        if time.monotonic() >= end:
            os.kill(child.pid, number)
            number, end = signal.SIGKILL, end + PATIENCE
        time.sleep(0.001)
    output = child.log.read_text(encoding="utf-8", errors="replace")
    child.log.unlink()
    changes = int.from_bytes(child.changes[:], "little")
    return Ending(os.waitstatus_to_exitcode(ended[1]), changes, output)


def run_forked(call: Callable[[], int], folder: Path, death: Death = Death()) -> Ending:
    """Run a function in a child process with `folder` as its working directory, and stop it as `death` says."""
    return finish(start_forked(call, folder, death))


def end_with(call: Callable[[], int]) -> NoReturn:
    """Call a function, and end this process with its exit code."""
    code = 70
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


def _be_the_child(call: Callable[[], int], folder: Path, log: Path, death: Death, changes: mmap.mmap) -> int:
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.chdir(folder)
    tqdm.set_lock(threading.RLock())  # the inherited one is shared: a process that was killed holds it for ever
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as gpt.cli.start does
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
    _count_changes(death, changes)
    if death.file_bytes is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (death.file_bytes, death.file_bytes))
    return call()


def _count_changes(death: Death, changes: mmap.mmap) -> None:
    """Count calls that change files, and die before the last one; nothing is flushed to disk, which is slow."""
    count = 0

    def note() -> None:
        nonlocal count
        count += 1
        changes[:] = count.to_bytes(8, "little")
        if count == death.changes:
            os.kill(os.getpid(), death.number)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in CHANGES or (event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING):
            note()

    os.fsync = lambda handle: note()
    sys.addaudithook(hook)
