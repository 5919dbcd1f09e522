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
from drills.kill import encode, write_texts
from drills.leftovers import contents, make_folder, train_tiny
from gpt.checkpoint import RunFolder, verify_checkpoint
from gpt.cli import train
from gpt.system.errors import CheckpointError

DISK = Path("disk")
RUN = DISK / "runs" / "tiny"
NEW_NAMESPACE, NEW_USER = 0x20000, 0x10000000
READ_ONLY, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 32, 4096, 16384, 1 << 18
NO_DISK = 77
"""Exit code where this system lets no process have a disk of its own."""
LOST = "LOST:"
"""Printed in a child, which alone sees its disk."""
Act = Callable[[], Any]


@dataclass(frozen=True)
class Fault:
    """What happens to a disk while a run saves on it.

    Attributes:
        name: shown in failures.
        acts: done before a save, by its number from 1.
        code: of the run in the end.
        warnings: failed saves that are reported, at least.
        says: part of a message.
        kibibytes: size of the disk.
    """

    name: str
    acts: dict[int, Act]
    code: int
    warnings: int = 0
    says: str = ""
    kibibytes: int = 4000

    def is_right(self, ending: Ending) -> bool:
        is_told = ending.output.count("the last checkpoint is kept") >= self.warnings and self.says in ending.output
        return ending.code == self.code and is_told


def fill() -> None:
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
    call_libc("mount", path, path, None, BIND, None)
    call_libc("mount", b"none", path, None, BIND | REMOUNT | READ_ONLY, None)


def become_writable() -> None:
    call_libc("umount", str(RUN / "checkpoints").encode())


def limit(most: int) -> Act:
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))


def become_slow() -> None:
    flush = os.fsync
    os.fsync = lambda handle: (time.sleep(0.01), flush(handle))[1]


FAULTS = (
    Fault("full from the start", {}, code=2, says="No space left on device", kibibytes=64),
    Fault("full from the second save on", {2: fill}, code=2, warnings=1),
    Fault("full for two saves", {2: fill, 4: make_room}, code=0, warnings=2),
    Fault("read-only from the second save on", {2: become_read_only}, code=2, warnings=1),
    Fault("read-only for two saves", {2: become_read_only, 4: become_writable}, code=0, warnings=2),
    Fault("files of 8 kB at most from the second save on", {2: limit(8000)}, code=2, warnings=1),
    Fault("files of 8 kB at most for two saves", {2: limit(8000), 4: limit(-1)}, code=0, warnings=2),
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
    """Call a function in a child that has a small disk of its own at `disk`, which is gone when the child ends."""
    DISK.mkdir(exist_ok=True)
    try:
        call_libc("unshare", NEW_NAMESPACE | (0 if os.geteuid() == 0 else NEW_USER))
        call_libc("mount", b"none", b"/", None, RECURSIVE | PRIVATE, None)
        call_libc("mount", b"none", str(DISK).encode(), b"tmpfs", 0, f"size={kibibytes}k".encode())
    except OSError:
        return NO_DISK
    return call()


def train_with(fault: Fault) -> int:
    """Train on a disk with a fault, and check what is left."""
    saves, save = 0, RunFolder.save

    def faulty_save(*arguments: object, **options: object) -> object:
        nonlocal saves
        saves += 1
        fault.acts.get(saves, lambda: None)()
        return save(*arguments, **options)

    changes = ("run.dir=disk/runs", "train.max_steps=10", "train.eval_interval=2", "train.keep_last=9")
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
    """Encode a corpus on a disk that is too small, and again when it is larger; return the first code."""
    assert encode() == 0
    expected = contents(Path("blocks"))
    code = encode(into="disk")
    if left := list((DISK / "tokens").iterdir()):
        print(LOST, f"what is left is {left}")
    call_libc("mount", b"none", str(DISK).encode(), b"tmpfs", REMOUNT, b"size=4000k")
    again = encode(into="disk")
    found = {name.replace("disk/", "blocks/"): value for name, value in contents(DISK).items()}
    if again != 0 or found != expected:
        print(LOST, f"it ends with {again}, and with {sorted(set(found) ^ set(expected))}")
    return code


def run(folder: Path, full: bool) -> Iterator[tuple[str, str, str]]:
    prepare_to_fork()
    train_tiny(folder)
    write_texts(folder / "texts")

    def attack(
        name: str, place: Path, call: Callable[[], int], is_right: Callable[[Ending], bool]
    ) -> tuple[str, str, str]:
        ending = run_forked(call, place)
        if ending.code == NO_DISK:
            return "not possible here", name, ""
        wrong = LOST in ending.output or "Traceback" in ending.output or not is_right(ending)
        return "faults of a disk", name, f"{ending.code}: {ending.output[-600:]}" if wrong else ""

    for fault in FAULTS if full else FAULTS[:3]:
        place = make_folder(folder / fault.name.replace(" ", "-"))
        call = partial(on_disk, fault.kibibytes, partial(train_with, fault))
        yield attack(fault.name, place, call, fault.is_right)
    call = partial(on_disk, 4, encode_on_small_disk)  # with room for the ids
    yield attack("tokens on a small one", folder, call, lambda ending: ending.code == 2)
