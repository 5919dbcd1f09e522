"""A run whose name a run of another configuration takes is kept aside, and nothing of it is lost."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from gpt.checkpoint import RunFolder, read_checkpoint
from gpt.cli import train
from gpt.errors import CheckpointError
from gpt.training.signals import Interrupted
from gpt.training.trainer import Trainer

from .conftest import Start

SHORT, LONG = "train.max_steps=3", "train.max_steps=6"


def files(run: Path) -> dict[str, bytes]:
    """The contents of a run folder, without the name in its configuration."""
    found = {path.relative_to(run).as_posix(): path.read_bytes() for path in run.rglob("*") if path.is_file()}
    found["config.yaml"] = found["config.yaml"].replace(f"name: {run.name}\n".encode(), b"name: run\n")
    return found


@pytest.fixture
def finished(start: Start, tmp_path: Path) -> dict[str, bytes]:
    """The files of a run of three steps in the folder runs/run."""
    start(tmp_path, SHORT).run()
    return files(tmp_path / "runs/run")


@pytest.mark.parametrize("resume", [None, "auto"])
def test_a_run_in_full_begins_anew_and_keeps_the_short_one(
    start: Start, tmp_path: Path, finished: dict[str, bytes], resume: str | None
) -> None:
    runs, lines = tmp_path / "runs", list[str]()
    trainer = start(tmp_path, LONG, resume=resume, report=lines.append)
    said = next(line for line in lines if "kept as" in line)
    assert said.startswith(f"{runs / 'run'} had another configuration (train.max_steps: 3 -> 6); ")
    assert f"kept as {runs / 'run.1'}, and a new one begins" in said
    assert ("run.name=run.1 --resume auto" in said) == (resume == "auto")
    trainer.run()
    assert files(runs / "run.1") == finished
    assert {path.name for path in runs.iterdir()} == {"run", "run.1"}
    assert RunFolder(runs / "run").pointed("last") == runs / "run/checkpoints/step-000006"
    again = start(tmp_path, "run.name=run.1", "train.max_steps=4", resume="auto", allow_config_change=True)
    again.run()  # under its new name
    assert RunFolder(runs / "run.1").pointed("last") == runs / "run.1/checkpoints/step-000004"
    start(tmp_path, "run.seed=5").run()
    assert {path.name for path in runs.iterdir()} == {"run", "run.1", "run.2"}


def test_a_run_of_the_same_configuration_stays_where_it_is(
    start: Start, tmp_path: Path, finished: dict[str, bytes]
) -> None:
    with pytest.raises(CheckpointError, match="exists already, with this configuration; continue it with --resume"):
        start(tmp_path, SHORT)
    start(tmp_path, SHORT, "train.log_interval=2", resume="auto").run()
    base, options = tmp_path / "runs/run", ("run.name=tuned", "train.init_from=run", "train.max_steps=2")
    start(tmp_path, *options, f"train.init_from={base}").run()
    with pytest.raises(CheckpointError, match="with this configuration"):  # the architecture is that of the base
        start(tmp_path, *options, f"train.init_from={base}")
    assert {path.name for path in base.parent.iterdir()} == {"run", "tuned"}


def test_a_run_that_is_not_finished_is_kept_aside_only_without_resume(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Trainer._train_one_step

    def stop(trainer: Trainer) -> None:
        step(trainer)
        signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_train_one_step", stop)
        with pytest.raises(Interrupted):
            start(tmp_path, LONG).run()
    with pytest.raises(CheckpointError) as caught:
        start(tmp_path, SHORT, resume="auto")
    ways = ("train.max_steps: 6 -> 3", "--allow-config-change to continue", "leave --resume out to begin a new run")
    assert all(way in str(caught.value) for way in ways)
    assert not (tmp_path / "runs/run.1").exists()
    start(tmp_path, SHORT).run()
    assert RunFolder(tmp_path / "runs/run.1").pointed("last").name == "step-000001"  # type: ignore[union-attr]


def test_a_run_that_another_process_trains_is_not_moved(
    start: Start, tmp_path: Path, finished: dict[str, bytes]
) -> None:
    for name in ("run", "run.1"):  # the place that it would be kept in, too
        other = RunFolder(tmp_path / "runs" / name)
        other.lock()
        with pytest.raises(CheckpointError, match=f"another process is training {other.path}"):
            start(tmp_path, LONG)
        other.unlock()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["run"]
    assert files(tmp_path / "runs/run") == finished


@pytest.mark.parametrize("failing", ["sync_folder", "write_atomic"])
def test_a_crash_at_any_point_loses_nothing_and_blocks_nothing(
    start: Start, tmp_path: Path, finished: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def crash(*_: object) -> None:
        raise RuntimeError("the power is cut")

    with monkeypatch.context() as patch:
        patch.setattr(f"gpt.training.replacing.{failing}", crash)
        with pytest.raises(RuntimeError, match="the power is cut"):
            start(tmp_path, LONG)
    start(tmp_path, LONG).run()
    kept = files(tmp_path / "runs/run.1")
    kept["config.yaml"] = finished["config.yaml"]  # it may have its former name
    assert kept == finished


def test_a_disk_that_refuses_the_new_name_is_an_error_of_one_line(
    start: Start, tmp_path: Path, finished: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        with pytest.raises(
            CheckpointError, match=r"^cannot keep .*runs/run, [^\n]*: Permission denied; [^\n]*run.name"
        ):
            start(tmp_path, LONG)
    assert files(tmp_path / "runs/run") == finished


@pytest.mark.parametrize("link", [True, False])
def test_a_link_or_a_model_of_another_command_gives_way_to_nothing(
    start: Start, tmp_path: Path, finished: dict[str, bytes], link: bool
) -> None:
    run = tmp_path / "runs/run"
    if link:
        run.rename(tmp_path / "elsewhere")
        run.symlink_to(tmp_path / "elsewhere")
    else:
        checkpoint = RunFolder(run).checkpoints()[0]
        shutil.copytree(checkpoint, tmp_path / "model")
        shutil.rmtree(run)
        (tmp_path / "model").rename(run)
    with pytest.raises(CheckpointError, match="exists already, with another configuration"):
        start(tmp_path, LONG)
    assert [path.name for path in run.parent.iterdir()] == ["run"]


def test_a_teacher_stays_with_its_student(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--config", "tiny.yaml", "train.teacher_share=0.5", "train.sample_tokens=0"]
    assert train.main([*command, "train.max_steps=4"]) == 0
    assert train.main(command) == 0
    steps = {path.name: read_checkpoint(RunFolder(path).checkpoints()[0]).state["step"] for path in runs(workplace)}
    assert steps == {"tiny": 6, "tiny-teacher": 3, "tiny.1": 4, "tiny.1-teacher": 2}
    capsys.readouterr()
    assert train.main(["--config", "runs/tiny.1/config.yaml", "--resume", "auto"]) == 0
    assert "runs/tiny.1-teacher/checkpoints/step-000002 predicts" in capsys.readouterr().err
    assert train.main(["--config", "tiny.yaml", "--resume", "auto"]) == 0  # without a teacher
    assert len(runs(workplace)) == 5


def runs(workplace: Path) -> list[Path]:
    return sorted((workplace / "runs").iterdir())
