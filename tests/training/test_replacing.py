"""A run whose name a run of another configuration takes is kept aside, and nothing of it is lost."""

import itertools
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpt.checkpoint import RunFolder, read_checkpoint
from gpt.cli import train
from gpt.system.errors import CheckpointError
from gpt.training import replacing
from gpt.training.signals import Interrupted
from training.sessions import start_session as start
from training.sessions import stopped_after

SHORT, LONG = "train.max_steps=3", "train.max_steps=6"
COMMAND = ["--config", "tiny.yaml", "train.sample_tokens=0"]


def files(run: Path) -> dict[str, bytes]:
    """The contents of a run folder, without the name in its configuration."""
    found = {path.relative_to(run).as_posix(): path.read_bytes() for path in run.rglob("*") if path.is_file()}
    return {**found, "config.yaml": re.sub(b"\n  name: .*", b"", found["config.yaml"])}


def all_runs(place: Path) -> dict[str, dict[str, bytes]]:
    return {path.name: files(path) for path in sorted((place / "runs").glob("[!.]*"))}  # without locks


def last_of(run: Path) -> str:
    folder = RunFolder(run).pointed("last")
    assert folder is not None
    assert folder.parents[1] == run
    return folder.name


@pytest.fixture
def finished(tmp_path: Path) -> dict[str, bytes]:
    """The files of a run of three steps in the folder runs/run."""
    start(tmp_path, SHORT).run()
    return files(tmp_path / "runs/run")


def test_run_of_a_text_that_was_edited_is_kept_aside(tmp_path: Path, finished: dict[str, bytes]) -> None:
    with (tmp_path / "corpus.txt").open("a", encoding="utf-8") as file:
        file.write("A line more, with a new character: %.\n")
    lines = list[str]()
    start(tmp_path, SHORT, report=lines.append).run()
    assert any("run had another configuration (data: another text); that run is kept as" in line for line in lines)
    assert files(tmp_path / "runs/run.1") == finished


def test_run_in_full_begins_anew_and_keeps_the_short_one(tmp_path: Path, finished: dict[str, bytes]) -> None:
    runs, lines = tmp_path / "runs", list[str]()
    trainer = start(tmp_path, LONG, report=lines.append)
    said = next(line for line in lines if "kept as" in line)
    assert said.startswith(f"{runs / 'run'} had another configuration (train.max_steps: 3 -> 6); ")
    assert f"kept as {runs / 'run.1'}, and a new one begins" in said
    trainer.run()
    assert files(runs / "run.1") == finished
    assert all_runs(tmp_path).keys() == {"run", "run.1"}
    assert last_of(runs / "run") == "step-000006"
    again = start(tmp_path, "run.name=run.1", "train.max_steps=4", resume="auto", allow_config_change=True)
    again.run()  # under its new name
    assert last_of(runs / "run.1") == "step-000004"
    start(tmp_path, "run.seed=5", resume="auto").run()
    assert all_runs(tmp_path).keys() == {"run", "run.1", "run.2"}


def test_finished_run_goes_on_if_its_resume_asks_for_more_steps(tmp_path: Path, finished: dict[str, bytes]) -> None:
    lines = list[str]()
    trainer = start(tmp_path, LONG, "optim.warmup_steps=5", resume="auto", report=lines.append)
    assert sum("continues to step 6, not 3, at the rates of the longer schedule" in line for line in lines) == 1
    assert trainer.state.step == 3
    trainer.run()
    assert all_runs(tmp_path).keys() == {"run"}
    assert last_of(tmp_path / "runs/run") == "step-000006"


def test_run_of_the_same_configuration_stays_where_it_is(tmp_path: Path, finished: dict[str, bytes]) -> None:
    with pytest.raises(CheckpointError, match="exists already, with this configuration"):
        start(tmp_path, SHORT)
    start(tmp_path, SHORT, "train.log_interval=2", resume="auto").run()
    options = ("run.name=tuned", f"train.init_from={tmp_path / 'runs/run'}", "train.max_steps=2")
    start(tmp_path, *options).run()
    with pytest.raises(CheckpointError, match="with this configuration"):  # the architecture is that of the base
        start(tmp_path, *options)
    assert all_runs(tmp_path).keys() == {"run", "tuned"}


def test_unfinished_run_is_kept_aside_only_without_resume(tmp_path: Path) -> None:
    with stopped_after(1), pytest.raises(Interrupted):
        start(tmp_path, LONG).run()
    ways = "train.max_steps: 6 -> 3.*--allow-config-change to continue.*leave --resume out to begin a new run"
    with pytest.raises(CheckpointError, match=ways):
        start(tmp_path, SHORT, resume="auto")
    assert not (tmp_path / "runs/run.1").exists()
    start(tmp_path, SHORT).run()
    assert last_of(tmp_path / "runs/run.1") == "step-000001"


def test_run_that_another_process_trains_is_not_moved(tmp_path: Path, finished: dict[str, bytes]) -> None:
    for name in ("run", "run.1"):  # the place that it would be kept in, too
        other = RunFolder(tmp_path / "runs" / name)
        other.lock()
        with pytest.raises(CheckpointError, match=f"another process is training {other.path}"):
            start(tmp_path, LONG)
        other.unlock()
    assert all_runs(tmp_path) == {"run": finished}


@pytest.fixture
def short(workplace: Path) -> dict[str, bytes]:
    """The files of the run runs/tiny of four steps."""
    assert train.main([*COMMAND, "train.max_steps=4"]) == 0
    return files(workplace / "runs/tiny")


def before_changes(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Call `act` before each change that keeping a run aside makes to the disk."""
    rename, write = Path.rename, replacing.write_atomic

    def renamed(old: Path, new: Path) -> Path:
        if old.parent.name == "runs":  # no checkpoint's
            act()
        return rename(old, new)

    def written(*given: Any) -> None:
        act()
        write(*given)

    monkeypatch.setattr(Path, "rename", renamed)
    monkeypatch.setattr(replacing, "write_atomic", written)


def test_crash_at_any_point_loses_nothing_and_blocks_nothing(
    workplace: Path, short: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    crashes: list[Path] = []

    def snapshot() -> None:
        crashes.append(workplace / f"crash{len(crashes)}")
        shutil.copytree("runs", crashes[-1] / "runs")

    with monkeypatch.context() as patch:
        before_changes(patch, snapshot)
        assert train.main(COMMAND) == 0
    assert len(crashes) == 2
    for crash in crashes[1:]:  # before the first, nothing has happened
        for name in ("corpus.txt", "tiny.yaml"):
            (crash / name).symlink_to(workplace / name)
        monkeypatch.chdir(crash)
        assert train.main(COMMAND) == 0
        assert short in all_runs(crash).values()
        assert RunFolder(crash / "runs/tiny").pointed("last").name == "step-000006"  # type: ignore[union-attr]


@pytest.mark.parametrize("failing", range(2))
def test_disk_that_refuses_a_change_is_an_error_of_one_line_and_leaves_all_as_it_was(
    workplace: Path, short: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, failing: int, capsys: Any
) -> None:
    count = itertools.count()

    def refuse() -> None:
        if next(count) == failing:
            raise PermissionError(13, "Permission denied")

    before_changes(monkeypatch, refuse)
    capsys.readouterr()
    assert train.main(COMMAND) == 2
    (error,) = re.findall("^error: .*", capsys.readouterr().err, re.MULTILINE)
    assert re.fullmatch("error: cannot keep runs.tiny, .*: Permission denied; .*run.name=NAME", error)
    assert all_runs(workplace) == {"tiny": short}


def test_printed_command_continues_the_run_that_gave_way(
    workplace: Path, short: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main(COMMAND) == 0
    steps = [
        read_checkpoint(RunFolder(Path("runs", name)).checkpoints()[0]).state["step"] for name in all_runs(workplace)
    ]
    assert steps == [6, 4]
    said = capsys.readouterr().err
    shutil.rmtree("runs/tiny.1/checkpoints/step-000004")  # as if it had been stopped
    Path("runs/tiny.1/last.json").unlink()
    assert train.main(shlex.split(re.findall("continue that one with: .* train (.*)", said)[0])) == 0
    assert last_of(workplace / "runs/tiny.1") == "step-000004"
    assert len(all_runs(workplace)) == 2


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["train.init_from=runs/tiny"], "but the new run would take the place of runs/tiny;"),
        (["train.max_steps=5", "run.kernels=native", "run.compile=true"], "torch does not compile native kernels"),
    ],
)
def test_refused_run_moves_nothing(
    workplace: Path, short: dict[str, bytes], capsys: pytest.CaptureFixture[str], options: list[str], reason: str
) -> None:
    for _ in range(2):
        capsys.readouterr()
        assert train.main([*COMMAND, *options]) == 2
        said = capsys.readouterr().err
        assert reason in said
        assert "kept as" not in said
    assert all_runs(workplace) == {"tiny": short}
