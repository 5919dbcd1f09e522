"""Disks that are full, read-only, slow, limited or gone while something is written."""

import ctypes
import os
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from drills.forks import Ending, prepare_to_fork, run_forked
from drills.kill import Outcome, encode, write_texts
from drills.leftovers import contents, make_folder, train_tiny
from gpt.checkpoint import RunFolder, verify_checkpoint
from gpt.cli import train
from gpt.system.errors import CheckpointError

DISK = Path("disk")
RUN = DISK / "runs" / "tiny"
CLONE_NEWNS = 0x20000
"""For unshare(2), from <sched.h>: mounts that other processes do not see."""
CLONE_NEWUSER = 0x10000000
"""A user namespace, in which a process without privileges may mount."""
MS_RDONLY = 1
"""For mount(2), from <sys/mount.h>, as those below."""
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
NO_DISK = 77
"""Exit code if this system lets no process have a disk of its own."""
LOST = "LOST:"
"""Printed in a child before what is lost: the child alone sees its disk."""
Act = Callable[[], Any]


@dataclass(frozen=True)
class Fault:
    """What happens to a disk while a run saves on it.

    Attributes:
        name: shown in failures.
        acts: called before a save, by its number from 1.
        code: exit code that the run has to end with.
        warnings: how many failed saves have to be reported at least.
        says: what the output has to contain.
        kibibytes: size of the disk.
    """

    name: str
    acts: dict[int, Act]
    code: int
    warnings: int = 0
    says: str = ""
    kibibytes: int = 4000

    def is_right(self, ending: Ending) -> bool:
        """Return whether a run has ended as it should."""
        warnings = ending.output.count("the last checkpoint is kept")
        is_reported = warnings >= self.warnings and self.says in ending.output
        return ending.code == self.code and is_reported


def fill() -> None:
    """Write a file until the disk is full."""
    with (DISK / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            pass


def make_room() -> None:
    (DISK / "filler").unlink()


def become_read_only() -> None:
    """Let nothing be written below the folder of the checkpoints, or into it."""
    path = str(RUN / "checkpoints").encode()
    # a folder can only be remounted if it is a mount, so it is mounted on itself first
    call_libc("mount", path, path, None, MS_BIND, None)
    call_libc("mount", b"none", path, None, MS_BIND | MS_REMOUNT | MS_RDONLY, None)


def become_writable() -> None:
    call_libc("umount", str(RUN / "checkpoints").encode())


def limit(max_bytes: int) -> Act:
    """Return an act after which no file may be larger; -1 is no limit."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, resource.RLIM_INFINITY))


def become_slow() -> None:
    """Let every flush to disk take 10 ms longer."""
    fsync = os.fsync

    def slow_fsync(handle: int) -> None:
        time.sleep(0.01)
        fsync(handle)

    setattr(os, "fsync", slow_fsync)  # noqa: B010 - it takes descriptors only


FAULTS = (
    Fault("full from the start", {}, code=2, says="No space left on device", kibibytes=64),
    Fault("full from the second save on", {2: fill}, code=2, warnings=1),
    Fault("full for two saves", {2: fill, 4: make_room}, code=0, warnings=2),
    Fault("read-only from the second save on", {2: become_read_only}, code=2, warnings=1),
    Fault("read-only for two saves", {2: become_read_only, 4: become_writable}, code=0, warnings=2),
    Fault("files of 8 kB at most from the second save on", {2: limit(8000)}, code=2, warnings=1),
    Fault(
        "files of 8 kB at most for two saves", {2: limit(8000), 4: limit(-1)}, code=0, warnings=2
    ),
    Fault("run folder deleted", {3: lambda: shutil.rmtree(RUN)}, code=0),
    Fault("slow", {1: become_slow}, code=0),
)


def call_libc(name: str, *arguments: object) -> None:
    """Call a function of the C library.

    Raises:
        OSError: it failed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), name)


def on_disk(kibibytes: int, call: Callable[[], int]) -> int:
    """Call a function in a child that has a small disk of its own at `disk`, which is gone when the
    child ends.
    """
    DISK.mkdir(exist_ok=True)
    try:
        is_root = os.geteuid() == 0
        call_libc("unshare", CLONE_NEWNS if is_root else CLONE_NEWNS | CLONE_NEWUSER)
        # mounts would otherwise be passed on to the namespace of other processes
        call_libc("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
        call_libc("mount", b"none", str(DISK).encode(), b"tmpfs", 0, f"size={kibibytes}k".encode())
    except OSError:
        return NO_DISK
    return call()


def _train_on_disk(fault: Fault) -> int:
    return on_disk(fault.kibibytes, lambda: train_with(fault))


def train_with(fault: Fault) -> int:
    """Train on a disk with a fault, and check what is left."""
    save = RunFolder.save
    number = 0

    def faulty_save(*arguments: Any, **options: Any) -> object:
        nonlocal number
        number += 1
        if number in fault.acts:
            fault.acts[number]()
        return save(*arguments, **options)

    changes = (
        "run.dir=disk/runs",
        "train.max_steps=10",
        "train.eval_interval=2",
        "train.keep_last=9",
    )
    with patch.object(RunFolder, "save", faulty_save):
        code = train.main(["--config", "tiny.yaml", *changes])
    folders = RunFolder(RUN).checkpoints()
    for folder in folders:
        try:
            verify_checkpoint(folder)
        except CheckpointError as error:
            print(LOST, error)
    if code == 0 and folders[0].name != "step-000010":
        print(LOST, f"the last checkpoint, there is {folders[0]}")
    if fault.warnings and not folders:
        print(LOST, "the checkpoint from before")
    return code


def encode_on_small_disk() -> int:
    """Encode a corpus on a disk that is too small, and again when it is larger.

    Return the first code.
    """
    assert encode() == 0
    expected = contents(Path("blocks"))
    first_code = encode(into="disk")
    left = list((DISK / "tokens").iterdir())
    if left:
        print(LOST, f"what is left is {left}")
    call_libc("mount", b"none", str(DISK).encode(), b"tmpfs", MS_REMOUNT, b"size=4000k")
    second_code = encode(into="disk")
    found = {name.replace("disk/", "blocks/"): value for name, value in contents(DISK).items()}
    if second_code != 0 or found != expected:
        different = sorted(set(found) ^ set(expected))
        print(LOST, f"it ends with {second_code}, and with {different}")
    return first_code


def run(folder: Path, full: bool) -> Iterator[Outcome]:
    """Train with every fault, or some, and encode on a disk that is too small."""
    prepare_to_fork()
    train_tiny(folder)
    write_texts(folder / "texts")
    for fault in FAULTS if full else FAULTS[:3]:
        place = make_folder(folder / fault.name.replace(" ", "-"))
        ending = run_forked(partial(_train_on_disk, fault), place)
        yield judge(fault.name, ending, fault.is_right(ending))
    # 4 kB have room for the ids of a text, but not for the rest
    ending = run_forked(lambda: on_disk(4, encode_on_small_disk), folder)
    yield judge("tokens on a small one", ending, ending.code == 2)


def judge(name: str, ending: Ending, is_right: bool) -> Outcome:
    """Return the outcome of a fault, given whether a process has ended as it should."""
    if ending.code == NO_DISK:
        return "not possible here", name, ""
    if is_right and LOST not in ending.output and "Traceback" not in ending.output:
        return "faults of a disk", name, ""
    return "faults of a disk", name, f"{ending.code}: {ending.output[-600:]}"
