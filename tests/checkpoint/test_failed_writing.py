"""Writing a checkpoint: an existing one is never lost to a full disk, a failed rename or a killed process."""

import errno
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpt.checkpoint.folder as folder_module
from gpt.checkpoint import (
    Checkpoint,
    RunFolder,
    find_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from gpt.errors import CheckpointError
from patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]


# --- writing that fails --------------------------------------------------------------------------


@pytest.mark.parametrize("call", range(6))
@pytest.mark.parametrize("replaced", [True, False])
def test_a_full_disk_keeps_what_was_there_and_leaves_nothing_behind(
    folder: Path,
    make_checkpoint: Callable[..., Checkpoint],
    monkeypatch: pytest.MonkeyPatch,
    call: int,
    replaced: bool,
) -> None:
    calls = iter(range(100))

    def full(path: Path) -> None:
        if next(calls) == call:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folder_module, "sync_file", full)
    target = folder if replaced else folder.with_name("step-000007")
    with pytest.raises(CheckpointError, match=f"cannot write {target}: No space left on device"):
        write_checkpoint(target, make_checkpoint(step=7))
    assert read_checkpoint(folder).state["step"] == 5
    assert list(folder.parent.iterdir()) == [folder]


def test_a_rename_that_fails_puts_the_old_checkpoint_back(
    folder: Path, make_checkpoint: Callable[..., Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def fail_for_the_new_one(self: Path, target: Path) -> Path:
        if self.suffix == ".tmp":
            raise OSError(errno.EACCES, "Permission denied")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_for_the_new_one)
    with pytest.raises(CheckpointError, match="Permission denied"):
        write_checkpoint(folder, make_checkpoint(step=7))
    assert read_checkpoint(folder).state["step"] == 5
    assert list(folder.parent.iterdir()) == [folder]


def test_a_checkpoint_that_a_crash_left_aside_is_kept_until_its_successor_is_there(
    folder: Path, make_checkpoint: Callable[..., Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    aside = folder.with_name(folder.name + ".old")
    folder.rename(aside)

    def fail(self: Path, target: Path) -> Path:
        assert read_checkpoint(aside).state["step"] == 5
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        with pytest.raises(CheckpointError):
            write_checkpoint(folder, make_checkpoint(step=7))
    assert read_checkpoint(aside).state["step"] == 5
    write_checkpoint(folder, make_checkpoint(step=7))
    assert list(folder.parent.iterdir()) == [folder]


# --- processes that die --------------------------------------------------------------------------

WRITER = """
import os, resource, shutil, signal, sys
from dataclasses import replace
from pathlib import Path
from gpt.checkpoint import RunFolder, read_checkpoint
from gpt.errors import CheckpointError

def save(run, step, best=True):
    newest = run.checkpoints()[0]
    checkpoint = read_checkpoint(newest)
    run.save(replace(checkpoint, state={**checkpoint.state, "step": step, "again": True}), best, keep_last=1)

def limited(path, limit):
    "Save while no file may become longer than so many bytes, as on a disk that is full."
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        save(RunFolder(path), 7)
    except CheckpointError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(error)

TOUCHING = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir"}

def save_and_die(path, step, number):
    "Save, and be killed just before the number-th time that the disk is touched."
    calls = 0
    def count(event, arguments):
        nonlocal calls
        if event in TOUCHING and calls >= 0:
            calls += 1
            if calls == number:
                os.kill(os.getpid(), signal.SIGKILL)
    run, reading = RunFolder(path), True
    checkpoint = read_checkpoint(run.checkpoints()[0])
    checkpoint = replace(checkpoint, state={**checkpoint.state, "step": step, "again": True})
    sys.addaudithook(count)
    run.save(checkpoint, True, 1)

def killed_everywhere(path, step):
    "One copy of the run for each place to die in; the last copy is that of a child that survived."
    for number in range(1, 200):
        copy = path.with_name(f"killed-{number:03}")
        shutil.copytree(path, copy)
        child = os.fork()
        if child == 0:
            save_and_die(copy, step, number)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            print(number, status)
            return

os.fsync = lambda handle: None
for scenario in Path(sys.argv[1]).iterdir():
    output = os.open(scenario / "output.txt", os.O_WRONLY | os.O_CREAT)
    if os.fork() == 0:
        os.dup2(output, 1)
        name, number = scenario.name.split("-")
        globals()[name](scenario / "run", int(number))
        sys.stdout.flush()
        os._exit(0)
    os.wait()
"""
LIMITS, STEPS = (100, 2000), (5, 7)


def make_run(folder: Path, checkpoint: Checkpoint) -> RunFolder:
    """Make a run with a checkpoint of step 5, the best and the last."""
    run = RunFolder(folder / "run")
    run.create(checkpoint.config)
    run.save(checkpoint, best=True, keep_last=1)
    return run


@pytest.fixture
def run(tmp_path: Path, checkpoint: Checkpoint) -> RunFolder:
    return make_run(tmp_path, checkpoint)


@pytest.fixture(scope="module")
def written(make_checkpoint: Callable[..., Checkpoint], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each scenario, with what it printed and the run that it saved; one process has done them all."""
    folder = tmp_path_factory.mktemp("written")
    names = [*(f"limited-{limit}" for limit in LIMITS), *(f"killed_everywhere-{step}" for step in STEPS)]
    for name in names:
        make_run(folder / name, make_checkpoint())
    command = [sys.executable, "-c", WRITER, str(folder)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    return folder


@pytest.mark.parametrize("step", STEPS, ids=["replacing the only checkpoint", "after another checkpoint"])
def test_a_process_killed_anywhere_in_a_save_leaves_a_checkpoint_that_is_found_and_whole(
    written: Path, step: int
) -> None:
    scenario = written / f"killed_everywhere-{step}"
    stages, status = map(int, (scenario / "output.txt").read_text().split())
    assert status == 0
    assert stages > 25
    seen = set()
    for number in range(1, stages):
        killed = RunFolder(scenario / f"killed-{number:03}")
        found = killed.newest_valid()
        assert found is not None, number
        again = "again" in found[1].state
        assert found[1].state["step"] == (step if again else 5)
        assert read_checkpoint(find_checkpoint(killed.path, killed.path)).state["step"] in (5, step)
        assert read_checkpoint(find_checkpoint(killed.path, killed.path, prefer="last")).state["step"] in (5, step)
        seen.add(again)
    assert seen == {True, False}


def test_the_next_save_clears_away_what_a_killed_process_left(run: RunFolder, checkpoint: Checkpoint) -> None:
    checkpoints = run.path / "checkpoints"
    shutil.copytree(checkpoints / "step-000005", checkpoints / ".step-000009.abcdefgh.tmp")
    (run.path / ".last.json.abcdefgh.tmp").write_text("half")
    run.save(checkpoint, best=True, keep_last=1)
    assert [folder.name for folder in checkpoints.iterdir()] == ["step-000005"]
    assert list(run.path.glob(".*")) == []


def test_a_second_reader_is_never_given_a_part(
    folder: Path, make_checkpoint: Callable[..., Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each flush of the new files the old checkpoint is still whole under its name."""
    steps: list[Any] = []
    monkeypatch.setattr(folder_module, "sync_file", lambda path: steps.append(read_checkpoint(folder).state["step"]))
    write_checkpoint(folder, make_checkpoint(step=7))
    assert steps == [5] * len(list(folder.iterdir()))


@pytest.mark.parametrize("limit", LIMITS)
def test_a_file_size_limit_in_the_kernel_keeps_the_old_checkpoint(written: Path, limit: int) -> None:
    run = RunFolder(written / f"limited-{limit}" / "run")
    output = (written / f"limited-{limit}" / "output.txt").read_text()
    assert "cannot write" in output
    assert "step-000007" in output
    assert [folder.name for folder in (run.path / "checkpoints").iterdir()] == ["step-000005"]
    assert read_checkpoint(find_checkpoint(run.path, run.path)).state["step"] == 5
