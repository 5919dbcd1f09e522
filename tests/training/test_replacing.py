"""A run whose name a run of another configuration takes is kept aside, and nothing of it is lost."""

import itertools
import re
import shlex
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpt.checkpoint import RunFolder, read_checkpoint
from gpt.cli import train
from gpt.system.errors import CheckpointError
from gpt.training import replacing
from gpt.training.signals import Interrupted
from gpt.training.trainer import Trainer

from .conftest import Start

SHORT, LONG = "train.max_steps=3", "train.max_steps=6"
COMMAND = ["--config", "tiny.yaml", "train.sample_tokens=0"]


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


def test_a_run_in_full_begins_anew_and_keeps_the_short_one(
    start: Start, tmp_path: Path, finished: dict[str, bytes]
) -> None:
    runs, lines = tmp_path / "runs", list[str]()
    trainer = start(tmp_path, LONG, report=lines.append)
    said = next(line for line in lines if "kept as" in line)
    assert said.startswith(f"{runs / 'run'} had another configuration (train.max_steps: 3 -> 6); ")
    assert f"kept as {runs / 'run.1'}, and a new one begins" in said
    trainer.run()
    assert files(runs / "run.1") == finished
    assert {path.name for path in runs.iterdir()} == {"run", "run.1"}
    assert RunFolder(runs / "run").pointed("last") == runs / "run/checkpoints/step-000006"
    again = start(tmp_path, "run.name=run.1", "train.max_steps=4", resume="auto", allow_config_change=True)
    again.run()  # under its new name
    assert RunFolder(runs / "run.1").pointed("last") == runs / "run.1/checkpoints/step-000004"
    start(tmp_path, "run.seed=5", resume="auto").run()
    assert {path.name for path in runs.iterdir()} == {"run", "run.1", "run.2"}


def test_a_finished_run_goes_on_if_its_resume_asks_for_more_steps(
    start: Start, tmp_path: Path, finished: dict[str, bytes]
) -> None:
    lines = list[str]()
    trainer = start(tmp_path, LONG, "optim.warmup_steps=5", resume="auto", report=lines.append)
    assert sum("goes on to step 6 in place of 3, by the longer schedule's rates" in line for line in lines) == 1
    assert trainer.state.step == 3
    trainer.run()
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"run"}
    assert RunFolder(tmp_path / "runs/run").pointed("last").name == "step-000006"  # type: ignore[union-attr]


def test_a_run_of_the_text_before_it_was_edited_is_kept_aside(
    start: Start, tmp_path: Path, finished: dict[str, bytes]
) -> None:
    with (tmp_path / "corpus.txt").open("a", encoding="utf-8") as file:
        file.write("A line more, with a new character: %.\n")
    lines = list[str]()
    start(tmp_path, SHORT, report=lines.append).run()
    said = next(line for line in lines if "kept as" in line)
    assert "run had another configuration (data: another text); that run is kept as" in said
    assert said.endswith("and a new one begins")
    assert files(tmp_path / "runs/run.1") == finished


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


@pytest.fixture
def short(workplace: Path) -> dict[str, bytes]:
    """The files of the run runs/tiny of four steps."""
    assert train.main([*COMMAND, "train.max_steps=4"]) == 0
    return files(workplace / "runs/tiny")


def operations(monkeypatch: pytest.MonkeyPatch, before: Callable[[], None]) -> None:
    """Call `before` each change that keeping a run aside makes to the disk."""
    rename, write = Path.rename, replacing.write_atomic

    def renamed(old: Path, new: Path) -> Path:
        if old.parent.name == "runs":  # no checkpoint's
            before()
        return rename(old, new)

    def written(*given: Any) -> None:
        before()
        write(*given)

    monkeypatch.setattr(Path, "rename", renamed)
    monkeypatch.setattr(replacing, "write_atomic", written)


def test_a_crash_at_any_point_loses_nothing_and_blocks_nothing(
    workplace: Path, short: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    crashes: list[Path] = []

    def snapshot() -> None:
        crashes.append(workplace / f"crash{len(crashes)}")
        shutil.copytree("runs", crashes[-1] / "runs")

    with monkeypatch.context() as patch:
        operations(patch, snapshot)
        assert train.main(COMMAND) == 0
    assert len(crashes) == 2
    for crash in crashes[1:]:  # before the first, nothing has happened
        (crash / "corpus.txt").symlink_to(workplace / "corpus.txt")
        (crash / "tiny.yaml").symlink_to(workplace / "tiny.yaml")
        monkeypatch.chdir(crash)
        assert train.main(COMMAND) == 0
        # its configuration may have its former name
        assert any(without_name(short) == without_name(files(path)) for path in runs(crash))
        assert RunFolder(crash / "runs/tiny").pointed("last").name == "step-000006"  # type: ignore[union-attr]


@pytest.mark.parametrize("failing", range(2))
def test_a_disk_that_refuses_a_change_is_an_error_of_one_line_and_leaves_all_as_it_was(
    workplace: Path,
    short: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failing: int,
) -> None:
    count = itertools.count()

    def refuse() -> None:
        if next(count) == failing:
            raise PermissionError(13, "Permission denied")

    operations(monkeypatch, refuse)
    capsys.readouterr()
    assert train.main(COMMAND) == 2
    (error,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert re.fullmatch("error: cannot keep runs.tiny, .*: Permission denied; .*run.name=NAME", error)
    assert {path.name: files(path) for path in runs(workplace)} == {"tiny": short}


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


def test_the_command_that_is_printed_continues_the_run_that_gave_way(
    workplace: Path, short: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main(COMMAND) == 0
    steps = {path.name: read_checkpoint(RunFolder(path).checkpoints()[0]).state["step"] for path in runs(workplace)}
    assert steps == {"tiny": 6, "tiny.1": 4}
    said = capsys.readouterr().err
    shutil.rmtree("runs/tiny.1/checkpoints/step-000004")  # as if it had been stopped
    (workplace / "runs/tiny.1/last.json").unlink()
    assert train.main(shlex.split(re.search("continue that one with: .* train (.*)", said)[1])) == 0  # type: ignore[index]
    assert RunFolder(workplace / "runs/tiny.1").pointed("last").name == "step-000004"  # type: ignore[union-attr]
    assert len(runs(workplace)) == 2


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["train.init_from=runs/tiny"], "but the new run would take the place of runs/tiny;"),
        (["train.max_steps=4", "run.kernels=native", "run.compile=true"], "torch does not compile native kernels"),
    ],
)
def test_a_run_that_is_refused_moves_nothing(
    workplace: Path, capsys: pytest.CaptureFixture[str], options: list[str], reason: str
) -> None:
    command = ["--config", "tiny.yaml"]
    assert train.main([*command, "train.max_steps=6"]) == 0
    before = {path.name: files(path) for path in runs(workplace)}
    capsys.readouterr()
    for _ in range(2):
        assert train.main([*command, *options]) == 2
        said = capsys.readouterr().err
        assert reason in said
        assert "kept as" not in said
    assert {path.name: files(path) for path in runs(workplace)} == before


@pytest.mark.parametrize("again", ["the command", "the run's configuration"])
def test_a_run_whose_warmup_was_cut_continues(
    workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    command = [*COMMAND, "optim.warmup_steps=40", "train.max_steps=20", "train.eval_interval=20"]
    step = Trainer._train_one_step

    def stop(trainer: Trainer) -> None:
        step(trainer)
        signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_train_one_step", stop)
        assert train.main(command) == 143
    assert train.main(command) == 2
    assert "exists already, with this configuration" in capsys.readouterr().err
    of_run = ["--config", "runs/tiny/config.yaml"]
    assert train.main([*(command if again == "the command" else of_run), "--resume", "auto"]) == 0
    assert (workplace / "runs/tiny/checkpoints/step-000020").is_dir()


def test_a_run_that_fails_is_not_locked_while_its_traceback_is_kept(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(trainer: Trainer) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Trainer, "_train_one_step", fail)
    with pytest.raises(RuntimeError, match="a bug") as kept:
        start(tmp_path).run()
    assert kept.tb
    assert not RunFolder(tmp_path / "runs/run").is_being_trained()


def runs(place: Path) -> list[Path]:
    return sorted((place / "runs").glob("[!.]*"))  # without locks


def without_name(content: dict[str, bytes]) -> dict[str, bytes]:
    config = re.sub(b"\n  name: .*", b"", content["config.yaml"])
    return {**content, "config.yaml": config}
