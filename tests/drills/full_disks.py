"""Shards and sweeps on a disk that becomes full: what is finished is kept, and they go on when there is room."""

from pathlib import Path

from drills.disk import DISK, NO_DISK, REMOUNT, call_libc, fill, make_room, mount_disk
from drills.killed_commands import contents, shard
from drills.killed_sweeps import GRID, outcomes, sweep_once
from gpt.training.sweeps import sweep as sweeps

SMALL = 20
"""Kibibytes for the first few of the shards."""


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
    Path("grid.yaml").write_text(GRID, encoding="utf-8")
    assert sweep_once("run.dir=whole") == 0
    expected = outcomes(Path("whole/tiny-grid"))
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
    if again != 0 or outcomes(DISK / "runs" / "tiny-grid")["rows"] != expected["rows"]:
        print(f"MISSING: the sweep ends with {again}")
    return code
