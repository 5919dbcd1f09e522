"""Run folders: which checkpoints stay, and which one is meant."""

import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from gpt.checkpoint import (
    Checkpoint,
    RunFolder,
    configuration_around,
    find_checkpoint,
    find_place,
    read_checkpoint,
)
from gpt.checkpoint.finding import run_around
from gpt.config import Config, DataConfig
from gpt.data.preparation import prepare
from gpt.system.environment import Settings
from gpt.system.errors import CheckpointError
from gpt.system.progress import silent
from gpt.training.monitor import RunFiles

MakeCheckpoint = Callable[..., Checkpoint]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """An empty run folder below `runs`."""
    run = RunFolder(tmp_path / "runs" / "one")
    run.create(Config())
    return run


def names(run: RunFolder) -> list[str]:
    return [folder.name for folder in run.checkpoints()]


def newest(run: RunFolder) -> tuple[str, int, list[str]]:
    """The folder of the newest that can be read, its step, and what is said of damaged ones."""
    found = run.newest_valid()
    assert found is not None
    return found[0].name, found[1].state["step"], found[2]


@pytest.mark.parametrize("keep_last", [1, 2, 3])
@pytest.mark.parametrize("best_at", [1, 3, 5])
def test_rotation_keeps_the_last_ones_and_the_best(
    run: RunFolder, make_checkpoint: MakeCheckpoint, keep_last: int, best_at: int
) -> None:
    for step in range(1, 6):
        run.save(make_checkpoint(step), best=step == best_at, keep_last=keep_last)
    expected = {*range(6 - keep_last, 6), best_at}
    assert names(run) == [f"step-{step:06d}" for step in sorted(expected, reverse=True)]


def test_steps_of_seven_digits_are_newer_and_other_files_stay(
    run: RunFolder, make_checkpoint: MakeCheckpoint
) -> None:
    others = [
        run.path / "checkpoints" / name
        for name in ("step-000001", "step-x", "notes", "step-000002.bak")
    ]
    for other in others:
        other.mkdir(parents=True)
    for step in (999_998, 999_999, 1_000_000):
        run.save(make_checkpoint(step), best=False, keep_last=2)
    assert names(run) == ["step-1000000", "step-999999"]
    assert all(other.is_dir() for other in others)


@pytest.mark.parametrize(
    "content", ["", '{"checkpoint": "checkpoints/step-000005", "step": 7, "val_loss": 1.0}']
)
def test_damaged_pointer_is_named_and_nothing_is_removed(
    run: RunFolder, make_checkpoint: MakeCheckpoint, content: str
) -> None:
    run.save(make_checkpoint(5), best=True, keep_last=1)
    run.save(make_checkpoint(7), best=False, keep_last=1)
    (run.path / "best.json").write_text(content)
    for path in (run.path, run.path / "best"):
        with pytest.raises(CheckpointError, match=r"best.json is damaged"):
            find_checkpoint(path, run.path.parent)
    run.save(make_checkpoint(9), best=False, keep_last=1)
    assert names(run) == ["step-000009", "step-000007", "step-000005"]
    (run.path / "last.json").write_text(content)
    name, step, damaged = newest(run)
    assert (name, step, len(damaged)) == ("step-000009", 9, 1)


def test_best_is_not_restored_silently_if_the_pointer_cannot_be_written(
    run: RunFolder, make_checkpoint: MakeCheckpoint
) -> None:
    """A pointer to an earlier checkpoint must not pass for the one that was asked for."""
    run.save(make_checkpoint(1), best=True, keep_last=9)
    newer = run.save(make_checkpoint(2), best=False, keep_last=9)
    full = OSError(errno.ENOSPC, "No space left on device")
    with (
        patch("gpt.checkpoint.runs.write_atomic", side_effect=full),
        pytest.raises(
            CheckpointError, match=r"^cannot write .*best.json: No space left on device$"
        ),
    ):
        run.restore_best(2)
    assert run.restore_best(2)
    assert run.pointed("best") == newer


def test_damaged_best_checkpoint_leaves_the_pointer_as_it_is(
    run: RunFolder, make_checkpoint: MakeCheckpoint
) -> None:
    older = run.save(make_checkpoint(1), best=True, keep_last=9)
    newer = run.save(make_checkpoint(2), best=False, keep_last=9)
    (newer / "state.json").write_bytes(b"")
    assert run.restore_best(2)
    assert run.pointed("best") == older


def test_deleted_best_checkpoint_does_not_keep_the_others(
    run: RunFolder, make_checkpoint: MakeCheckpoint
) -> None:
    shutil.rmtree(run.save(make_checkpoint(1), best=True, keep_last=1))
    for step in (2, 3):
        run.save(make_checkpoint(step), best=False, keep_last=1)
    assert names(run) == ["step-000003"]


def test_newest_readable_checkpoint_is_taken_past_damaged_ones(
    run: RunFolder, make_checkpoint: MakeCheckpoint
) -> None:
    assert run.newest_valid() is None
    folders = [run.save(make_checkpoint(step), best=False, keep_last=9) for step in (1, 2, 3)]
    (folders[2] / "model.safetensors").write_bytes(b"")
    (folders[1] / "model.safetensors").write_bytes(b"")
    name, step, (last, second) = newest(run)
    assert (name, step) == ("step-000001", 1)
    assert str(folders[2]) in last
    assert str(folders[1]) in second
    (folders[0] / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"no readable checkpoint; the newest: .*step-000003"):
        run.newest_valid()
    assert (
        run.save(make_checkpoint(2), best=False, keep_last=1) == run.pointed("last") == folders[1]
    )
    assert newest(run) == ("step-000002", 2, []), (
        "those that an earlier resume left behind are newer"
    )


def test_run_killed_while_rewinding_repeats_the_dropped_steps(
    run: RunFolder, make_checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [run.save(make_checkpoint(step), best=False, keep_last=9) for step in (2, 4)]
    sample = run.samples / "step-000004.txt"
    sample.write_text("")
    state = read_checkpoint(folders[0]).state
    unlink = Path.unlink

    def kill(path: Path) -> None:
        unlink(path)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", kill)
        with pytest.raises(KeyboardInterrupt):
            run.continue_from(folders[0], state)
    assert not sample.exists()
    assert newest(run) == ("step-000002", 2, [])


def test_resumed_run_removes_what_a_killed_process_was_writing(run: RunFolder) -> None:
    for folder in (run.path, run.path / "checkpoints", run.samples, run.snapshots):
        (folder / ".step-000002.a1b2c3d4.tmp").mkdir(parents=True)
    run.create(Config())
    assert list(run.path.rglob(".*.tmp")) == []


def test_replaced_folder_is_listed_after_its_replacement(
    run: RunFolder, make_checkpoint: MakeCheckpoint
) -> None:
    for step in (1, 2):
        run.save(make_checkpoint(step), best=False, keep_last=9)
    folder = run.path / "checkpoints" / "step-000002"
    folder.rename(folder.with_name("step-000002.old"))
    assert names(run) == ["step-000002.old", "step-000001"]
    run.save(make_checkpoint(3), best=False, keep_last=9)
    (folder.with_name("step-000003")).rename(folder)
    assert names(run) == ["step-000002", "step-000002.old", "step-000001"]


def test_path_means_a_checkpoint(tmp_path: Path, make_checkpoint: MakeCheckpoint) -> None:
    runs = tmp_path / "runs"
    elsewhere = tmp_path / "best"
    for name, time in (("a", 1000), ("b", 3000), ("c", 2000)):
        for step in (1, 2, 3):
            RunFolder(runs / name).save(make_checkpoint(step), best=step == 1, keep_last=9)
        os.utime(runs / name / "last.json", (time, time))
    (runs / "started, but nothing saved yet").mkdir()
    run = runs / "b"
    for path, prefer, step in (
        *((run, "best", 1), (run, "last", 3), (run / "best", "last", 1), (run / "last", "best", 3)),
        *((run / "checkpoints/step-000002", "best", 2), (None, "best", 1), (None, "last", 3)),
    ):
        assert find_checkpoint(path, runs, prefer) == run / "checkpoints" / f"step-{step:06d}"
    (run / "checkpoints" / "step-000002").rename(elsewhere)
    assert find_checkpoint(elsewhere, runs) == elsewhere
    for name in ("best", "last"):
        (run / f"{name}.json").unlink()
        assert find_checkpoint(run, runs).name == "step-000003"


def test_run_is_found_by_its_name_or_suggested_when_misspelt(
    tmp_path: Path, make_checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = Path("runs")
    for name in ("poems", "letters"):
        RunFolder(runs / name).save(make_checkpoint(1), best=True, keep_last=9)
    checkpoint = runs / "poems/checkpoints/step-000001"
    for path in (
        "poems",
        "poems/best",
        "poems/last",
        "poems/checkpoints/step-000001",
        "runs/poems",
    ):
        assert find_checkpoint(Path(path), runs) == checkpoint
    assert configuration_around(checkpoint) == runs / "poems/config.yaml"
    for path, hint in (
        ("poens", "did you mean poems[?]"),
        ("runs/poens/last", "did you mean poems[?]"),
        ("poems/checkpoints/step-00001", "did you mean step-000001[?]"),
        ("runs/poems/checkpoints/step-00001", "did you mean step-000001[?]"),
        ("novel", "runs has (letters, poems|poems, letters)"),
    ):
        with pytest.raises(CheckpointError, match=f"^{path}: no such run or checkpoint; {hint}$"):
            find_checkpoint(Path(path), runs)
    checkpoint.rename("alone")
    with pytest.raises(
        CheckpointError,
        match=r"^alone belongs to no run that .* by --config FILE \(in Python config=FILE\)$",
    ):
        configuration_around(find_checkpoint(Path("alone"), runs))


def test_path_of_a_file_means_its_folder_and_others_hide_no_run(
    tmp_path: Path, make_checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunFolder(Path("runs/poems"))
    run.save(make_checkpoint(1), best=True, keep_last=9)
    Path("poems").mkdir()
    Path("poems/manifest.json").write_text("{}", encoding="utf-8")
    checkpoint = run.path / "checkpoints/step-000001"
    for path in (
        "poems",
        "poems/best",
        "poems/last.json",
        "runs/poems/config.yaml",
        checkpoint / "model.safetensors",
    ):
        assert find_checkpoint(Path(path), run.path.parent) == checkpoint
    assert find_place(Path("poems"), run.path.parent) == run.path
    shutil.rmtree("runs")
    Path("poems/manifest.json").unlink()
    with pytest.raises(
        CheckpointError, match=r"^poems holds no checkpoint; train first, or give another run$"
    ):
        find_checkpoint(Path("poems"), run.path.parent)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere", "nowhere: no such run or checkpoint"),
        ("runs/one/best", "one.best holds no checkpoint; train first"),
        ("runs/one", "one holds no checkpoint; train first"),
        ("runs", "runs holds no checkpoint"),
        ("runs/one/config.yaml", "holds no checkpoint"),
        ("nowhere/last", "nowhere.last: no such run or checkpoint"),
        (None, "no trained run below .*runs; train first: gpt train"),
    ],
)
def test_path_without_a_checkpoint_is_refused(
    run: RunFolder, path: str | None, message: str
) -> None:
    root = run.path.parent.parent
    with pytest.raises(CheckpointError, match=message):
        find_checkpoint(None if path is None else root / path, root / "runs")


def test_missing_pointer_of_a_trained_run_is_told_with_a_checkpoint_to_take(
    run: RunFolder, make_checkpoint: MakeCheckpoint
) -> None:
    """A run has no best checkpoint before its first evaluation; training again would be in vain."""
    checkpoint = run.save(make_checkpoint(3), best=False, keep_last=9)
    message = f"{run.path} has no best checkpoint; give {checkpoint} instead"
    with pytest.raises(CheckpointError, match=f"^{re.escape(message)}$"):
        find_checkpoint(run.path / "best", run.path.parent)
    assert find_checkpoint(run.path, run.path.parent) == checkpoint
    (run.path / "last.json").unlink()
    with pytest.raises(CheckpointError, match="has no last checkpoint; give "):
        find_checkpoint(run.path / "last", run.path.parent)
    assert find_checkpoint(run.path, run.path.parent) == checkpoint


def test_newest_run_is_found_beside_pointers_that_are_no_files(
    run: RunFolder, make_checkpoint: MakeCheckpoint
) -> None:
    run.save(make_checkpoint(3), best=True, keep_last=1)
    runs = run.path.parent
    for name in ("dangling", "folder"):
        (runs / name).mkdir()
    (runs / "dangling" / "last.json").symlink_to("nowhere")
    (runs / "folder" / "last.json").mkdir()
    assert find_checkpoint(None, runs).parents[1] == run.path


HOLD = """
import sys, time
from pathlib import Path
from gpt.checkpoint import RunFolder
run = RunFolder(Path(sys.argv[1]))
run.lock()
print("locked", flush=True)
time.sleep(60)
"""


def test_run_is_locked_until_its_process_ends_in_whatever_way(run: RunFolder) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run.path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "locked\n"
            with pytest.raises(
                CheckpointError, match=f"^another process is training {run.path}; [^\n]+$"
            ):
                run.lock()
            other = RunFolder(run.path.parent / "other")
            other.lock()
            other.unlock()
        finally:
            holder.kill()
    run.lock()
    run.unlock()


def test_nobody_else_can_write_into_a_run_whatever_the_umask(
    tmp_path: Path, checkpoint: Checkpoint
) -> None:
    before = os.umask(0)
    try:
        run = RunFolder(tmp_path / "above" / "run")
        run.lock()
        run.create(checkpoint.config)
        run.save(checkpoint, best=True, keep_last=1)
        files = RunFiles(run)
        files.start(0)
        files.scalars(1, {"train/loss": 1.0})
        files.sample(1, "text")
        settings = Settings(data_dir=None, cache_dir=tmp_path, offline=True)
        prepare(DataConfig(source="pydocs", dir=str(tmp_path / "data")), settings, silent)
        run.unlock()
    finally:
        os.umask(before)
    written = list(tmp_path.rglob("*"))
    assert len(written) > 15
    assert [path for path in written if path.stat().st_mode & 0o002] == []


def test_run_has_one_lock_by_any_link_and_leaves_nothing_behind(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "runs" / "one")
    alias = RunFolder(tmp_path / "runs" / "alias")
    run.lock()
    assert not run.path.exists()
    alias.path.symlink_to("one")
    with pytest.raises(CheckpointError, match=f"^another process is training {alias.path}; "):
        alias.lock()
    alias.path.unlink()
    run.unlock()
    run.unlock()
    assert list(tmp_path.iterdir()) == []


def test_run_is_found_from_inside_its_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tmp_path / "poems" / "checkpoints" / "step-000001"
    checkpoint.mkdir(parents=True)
    monkeypatch.chdir(checkpoint.parent)
    for path in ("step-000001", "../checkpoints/step-000001", "."):
        found = run_around(Path(path))
        assert (found is not None) == (path != "."), path
        assert found is None or found.path.resolve() == (tmp_path / "poems").resolve()
