"""Writing a checkpoint: an existing one is never lost to a full disk, a failed rename or a killed
process.
"""

import errno
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

from drills.forks import Death, run_forked
from gpt.checkpoint import Checkpoint, RunFolder, find_checkpoint, read_checkpoint, write_checkpoint
from gpt.system.errors import CheckpointError


@pytest.mark.parametrize("replaced", [True, False])
def test_full_disk_keeps_the_old_checkpoint_and_leaves_no_files(
    folder: Path,
    make_checkpoint: Callable[..., Checkpoint],
    replaced: bool,
) -> None:
    """The disk is full at the first file that is flushed, then at the second, and so on."""
    target = folder if replaced else folder.with_name("step-000007")
    new = make_checkpoint(step=7)
    number_of_files = len(list(folder.iterdir()))
    for room in range(number_of_files):
        message = f"cannot write {target}: No space left on device"
        with (
            patch("os.fsync", full_after(room, folder)),
            pytest.raises(CheckpointError, match=message),
        ):
            write_checkpoint(target, new)
        assert read_checkpoint(folder).state["step"] == 5
        assert list(folder.parent.iterdir()) == [folder]


def full_after(room: int, folder: Path) -> Callable[[int], None]:
    """Return an fsync for which the disk has room for some files; `folder` stays readable."""
    files: list[int] = []

    def fsync(handle: int) -> None:
        assert read_checkpoint(folder).state["step"] == 5, "a second reader is given a part"
        if stat.S_ISREG(os.fstat(handle).st_mode):
            files.append(handle)
        if len(files) > room:
            raise OSError(errno.ENOSPC, "No space left on device")

    return fsync


def test_failed_rename_keeps_the_old_checkpoint_after_a_crash(
    folder: Path, make_checkpoint: Callable[..., Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename
    aside = folder.with_name(folder.name + ".old")

    def fail_for_the_new_one(self: Path, target: Path) -> Path:
        if self.suffix == ".tmp":
            assert read_checkpoint(aside).state["step"] == 5
            raise OSError(errno.EACCES, "Permission denied")
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail_for_the_new_one)
        for kept in (folder, aside):
            if kept is aside:
                rename(folder, aside)
            with pytest.raises(CheckpointError, match="Permission denied"):
                write_checkpoint(folder, make_checkpoint(step=7))
            assert read_checkpoint(folder).state["step"] == 5
            assert list(folder.parent.iterdir()) == [folder]
    folder.rename(aside)
    write_checkpoint(folder, make_checkpoint(step=7))
    assert list(folder.parent.iterdir()) == [folder]


@pytest.fixture
def run(tmp_path: Path, checkpoint: Checkpoint) -> RunFolder:
    """A run with a checkpoint of step 5, the best and the last."""
    run = RunFolder(tmp_path / "run")
    run.save(checkpoint, best=True, keep_last=1)
    return run


def save_again(path: Path, step: int) -> int:
    run = RunFolder(path)
    checkpoint = read_checkpoint(run.checkpoints()[0])
    run.save(
        replace(checkpoint, state={**checkpoint.state, "step": step, "again": True}),
        best=True,
        keep_last=1,
    )
    return 0


@pytest.mark.parametrize(
    "step", [5, 7], ids=["replacing the only checkpoint", "after another checkpoint"]
)
def test_kill_anywhere_in_a_save_leaves_a_whole_checkpoint(
    run: RunFolder, step: int, tmp_path: Path
) -> None:
    seen = set()
    path = tmp_path / "killed"
    shutil.copytree(run.path, path)
    changes = run_forked(partial(save_again, path, step), tmp_path).changes
    assert changes > len(list((run.path / "checkpoints/step-000005").iterdir()))
    for number in range(1, changes + 1):
        shutil.rmtree(path)
        shutil.copytree(run.path, path)
        assert run_forked(
            partial(save_again, path, step), tmp_path, Death(changes=number)
        ).was_killed
        found = RunFolder(path).newest_valid()
        assert found is not None, number
        again = "again" in found[1].state
        assert found[1].state["step"] == (step if again else 5)
        for prefer in ("best", "last"):
            assert read_checkpoint(find_checkpoint(path, path, prefer)).state["step"] in (5, step)
        seen.add(again)
    assert seen == {True, False}


def test_next_save_clears_away_what_a_killed_process_left(
    run: RunFolder, checkpoint: Checkpoint
) -> None:
    checkpoints = run.path / "checkpoints"
    shutil.copytree(checkpoints / "step-000005", checkpoints / ".step-000009.abcdefgh.tmp")
    (run.path / ".last.json.abcdefgh.tmp").mkdir()
    run.save(checkpoint, best=True, keep_last=1)
    assert [folder.name for folder in checkpoints.iterdir()] == ["step-000005"]
    assert list(run.path.glob(".*")) == []
