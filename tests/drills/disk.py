"""Disks that are full, read-only, slow, limited or gone while something is written."""

import ctypes
import os
import resource
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from drills.forks import Ending, prepare_to_fork, run_forked
from drills.frame import Drill, Tally
from drills.killed_commands import contents, shard, write_texts
from drills.leftovers import all_runs, hidden_files
from drills.tiny_run import make_folder, sweep_once, train_tiny
from gpt.checkpoint import RunFolder, verify_checkpoint
from gpt.cli import export, prepare_data, quantize, train
from gpt.errors import CheckpointError
from gpt.training.sweeps import sweep as sweeps

DISK = Path("disk")
SMALL = 20
"""Kibibytes for the first few of the shards."""
NEW_NAMESPACE, NEW_USER = 0x20000, 0x10000000
READ_ONLY, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 32, 4096, 16384, 1 << 18
NO_DISK = 77
"""Exit code where this system lets no process have a disk of its own."""
Act = Callable[[], None]


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


def fill() -> None:
    """Take all the space that is left."""
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
    path = str(DISK / "runs" / "tiny" / "checkpoints").encode()
    call_libc("mount", path, path, None, BIND, None)
    call_libc("mount", b"none", path, None, BIND | REMOUNT | READ_ONLY, None)


def become_writable() -> None:
    call_libc("umount", str(DISK / "runs" / "tiny" / "checkpoints").encode())


def limit(most: int) -> Act:
    """Limit the size of every file that this process writes."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))


def vanish() -> None:
    shutil.rmtree(DISK / "runs" / "tiny")


def become_slow() -> None:
    flush = os.fsync
    os.fsync = lambda handle: (time.sleep(0.01), flush(handle))[1]


FAULTS = (
    Fault("full from the start", {}, code=2, says="make room", kibibytes=64),
    Fault("full from the second save on", {2: fill}, code=2, warnings=1),
    Fault("full for two saves", {2: fill, 4: make_room}, code=0, warnings=2),
    Fault("read-only from the second save on", {2: become_read_only}, code=2, warnings=1),
    Fault("read-only for two saves", {2: become_read_only, 4: become_writable}, code=0, warnings=2),
    Fault("files of 8 kB at most from the second save on", {2: limit(8000)}, code=2, warnings=1),
    Fault("files of 8 kB at most for two saves", {2: limit(8000), 4: limit(-1)}, code=0, warnings=2),
    Fault("run folder deleted", {3: vanish}, code=0),
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


def mount_disk(kibibytes: int) -> None:
    """Give this process a small disk of its own at `disk`; it is gone when the process ends.

    Raises:
        OSError: the system does not allow that.
    """
    DISK.mkdir(exist_ok=True)
    call_libc("unshare", NEW_NAMESPACE | (0 if os.geteuid() == 0 else NEW_USER))
    call_libc("mount", b"none", b"/", None, RECURSIVE | PRIVATE, None)
    call_libc("mount", b"none", str(DISK).encode(), b"tmpfs", 0, f"size={kibibytes}k".encode())


def train_on(fault: Fault) -> int:
    """Train on a disk with a fault, in a child; check there what is left, since only it sees the disk."""
    try:
        mount_disk(fault.kibibytes)
    except OSError:
        return NO_DISK
    saves, save = 0, RunFolder.save

    def faulty_save(*arguments: object, **options: object) -> object:
        nonlocal saves
        saves += 1
        fault.acts.get(saves, lambda: None)()
        return save(*arguments, **options)

    RunFolder.save = faulty_save
    changes = ("run.dir=disk/runs", "train.max_steps=10", "train.eval_interval=2", "train.keep_last=9")
    code = train.main(["--config", "tiny.yaml", *changes])
    folders = RunFolder(DISK / "runs" / "tiny").checkpoints()
    for folder in folders:
        try:
            verify_checkpoint(folder)
        except CheckpointError as error:
            print(f"DAMAGED {error}")
    if code == 0 and folders[0].name != "step-000010":
        print(f"MISSING the last checkpoint, there is {folders[0]}")
    if fault.warnings and not folders:
        print("MISSING the checkpoint from before")
    return code


def check(fault: Fault, ending: Ending, tally: Tally) -> None:
    said = f"{fault.name}: {ending.code}: {ending.output[-600:]}"
    good = tally.check(ending.code == fault.code, said)
    good &= tally.check(ending.output.count("the last checkpoint is kept (") >= fault.warnings, said)
    good &= tally.check(not fault.warnings or f"({fault.warnings} failed)" in ending.output, said)
    good &= tally.check(fault.says in ending.output, said)
    good &= tally.check(not any(word in ending.output for word in ("DAMAGED", "MISSING", "Traceback")), said)
    tally.count("faults of a disk")
    tally.count("lost", not good)


def command_on_full_disk(call: Callable[[], int]) -> int:
    """Run a command on a full disk, in a child."""
    try:
        mount_disk(64)
    except OSError:
        return NO_DISK
    fill()
    code = call()
    left = [str(path) for path in DISK.rglob("*") if path.is_file() and path.name != "filler"] + hidden_files(DISK)
    print(f"MISSING nothing, too much: {left}" if left else "")
    return code


CHECKPOINT = ["--checkpoint", "runs/tiny", "--output"]
COMMANDS: dict[str, Callable[[], int]] = {
    "encode": lambda: prepare_data.main(["--config", "tiny.yaml", "data.dir=disk"]),
    "quantize": lambda: quantize.main([*CHECKPOINT, "disk/quantized"]),
    **{
        f"export to {kind}": lambda kind=kind: export.main(["--to", kind, *CHECKPOINT, f"disk/{kind}"])
        for kind in ("html", "hf", "gguf")
    },
}


def shard_on_small_disk() -> int:
    """Encode a corpus on a disk that is too small, and again when it is larger, in a child; return the first code."""
    assert shard() == 0
    expected = contents(Path("sharded"))
    try:
        mount_disk(SMALL)
    except OSError:
        return NO_DISK
    code = shard(into="disk")
    kept = len(list(DISK.rglob("shard-*.bin")))
    if not kept or list(DISK.rglob("*.tmp")):
        print(f"MISSING: {kept} shards are kept, and {list(DISK.rglob('*.tmp'))}")
    call_libc("mount", b"none", str(DISK).encode(), b"tmpfs", REMOUNT, b"size=4000k")
    again = shard(into="disk")
    found = {name.replace("disk/", "sharded/"): value for name, value in contents(DISK).items()}
    if again != 0 or found != expected:
        print(f"MISSING: it ends with {again}, and with {sorted(set(found) ^ set(expected))}")
    return code


def sweep_on_full_disk() -> int:
    """Sweep on a disk that is full when the second trial is recorded, and again when there is room, in a child."""
    assert sweep_once("run.dir=whole") == 0
    expected = all_runs(Path("whole"))["rows"]
    try:
        mount_disk(4000)
    except OSError:
        return NO_DISK
    saves, save = 0, sweeps.save_outcomes

    def faulty_save(*arguments: object) -> None:
        nonlocal saves
        saves += 1
        if saves == 3:  # there is one at the start, and one for each trial
            fill()
        save(*arguments)  # type: ignore[arg-type]

    sweeps.save_outcomes = faulty_save
    code = sweep_once("run.dir=disk/runs")
    sweeps.save_outcomes = save
    make_room()
    again = sweep_once("run.dir=disk/runs")
    if again != 0 or all_runs(DISK / "runs")["rows"] != expected:
        print(f"MISSING: the sweep ends with {again}")
    return code


OTHERS = {"shards on a small disk": shard_on_small_disk, "a sweep on a full disk": sweep_on_full_disk}


def run(folder: Path, full: bool) -> Tally:
    """Train and write on disks with faults."""
    tally = Tally("faults of a disk", "commands on a full disk", "lost", "not possible here")
    prepare_to_fork()
    train_tiny(folder)
    for fault in FAULTS if full else FAULTS[:3]:
        place = make_folder(folder / fault.name.replace(" ", "-"))
        ending = run_forked(lambda fault=fault: train_on(fault), place)
        if ending.code == NO_DISK:
            tally.count("not possible here")
        else:
            check(fault, ending, tally)
    write_texts(folder / "texts")
    commands = {name: lambda call=call: command_on_full_disk(call) for name, call in COMMANDS.items() if full}
    for name, call in (commands | OTHERS).items():
        ending = run_forked(call, folder)
        if ending.code == NO_DISK:
            tally.count("not possible here")
            continue
        words = ("DAMAGED", "MISSING", "Traceback")
        good = tally.check(
            ending.code == 2 and not any(word in ending.output for word in words),
            f"{name}: {ending.code}: {ending.output[-600:]}",
        )
        tally.count("commands on a full disk")
        tally.count("lost", not good)
    return tally


DRILL = Drill(
    "A disk that is full, read-only, limited, slow or loses the run folder costs no checkpoint from before: training "
    "continues with counted warnings, and fails in the end only if the last checkpoint cannot be written. Shards and "
    "sweeps keep what is finished, and go on when there is room.",
    run,
)
