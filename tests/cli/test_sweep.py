import json
from pathlib import Path
from typing import Any

import pytest

from gpt.cli import sweep
from gpt.training.signals import Interrupted
from gpt.training.sweeps.sweep import Outcome, Sweep

COMMAND = ["--config", "tiny.yaml", "grid.yaml"]
GRID = "optim:\n  learning_rate: [1e-4, 1e-2]\n"


@pytest.fixture
def here(workplace: Path) -> Path:
    (workplace / "grid.yaml").write_text(GRID, encoding="utf-8")
    return workplace


def pretend(monkeypatch: pytest.MonkeyPatch, *losses: float | None) -> list[Any]:
    """Replace the run of a sweep: each trial has a loss or has failed; return the devices of each call."""
    calls: list[Any] = []

    def run(self: Sweep, devices: Any) -> None:
        calls.append(devices)
        for name, loss in zip(self.outcomes, losses, strict=True):
            failed = Outcome(name, "failed", message="error: why")
            self.outcomes[name] = failed if loss is None else Outcome(name, "finished", loss, 5, loss, 6, 1.5)

    monkeypatch.setattr(Sweep, "run", run)
    return calls


def test_the_table_is_sorted_by_loss_and_names_the_best(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = pretend(monkeypatch, 2.5, 1.25)
    assert sweep.main([*COMMAND, "--devices", "cuda:0,cuda:1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "runs/tiny-grid: 2 trials"
    assert lines[3].split() == ["validation", "loss", "at", "step", "s", "optim.learning_rate"]
    assert [line.split() for line in lines[5:7]] == [["1.2500", "5", "1.5", "0.01"], ["2.5000", "5", "1.5", "0.0001"]]
    assert lines[7] == "the best: runs/tiny-grid/optim.learning_rate-0.01"
    assert calls == [["cuda:0", "cuda:1"]]


def test_a_failed_trial_is_in_the_table_and_in_the_exit_code(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch, None, 2.0)
    assert sweep.main([*COMMAND, "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)["trials"]
    assert [(row["status"], row["message"]) for row in rows] == [("finished", ""), ("failed", "error: why")]
    assert sweep.main(COMMAND) == 1
    assert capsys.readouterr().out.splitlines()[6].split() == ["failed", "-", "-", "0.0001"]


def test_a_stopped_sweep_says_how_to_continue(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(self: Sweep, devices: Any) -> None:
        raise Interrupted(15)

    monkeypatch.setattr(Sweep, "run", run)
    assert sweep.main(COMMAND) == 143
    assert "stopped by SIGTERM: 0 of 2 trials are finished; the same command continues" in capsys.readouterr().err


def test_print_trials_lists_them_and_writes_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep.main([*COMMAND, "--print-trials"]) == 0
    assert capsys.readouterr().out == "optim.learning_rate=0.0001\noptim.learning_rate=0.01\n"
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("grid", "options", "words"),
    [
        ("model:\n  n_layers: [1]\n", [], "grid.yaml:2: model.n_layers: unknown key; did you mean n_layer?"),
        (GRID, ["train.max_step=3"], "command line: train.max_step: unknown key"),
        (GRID, ["--devices", "gpu"], "--devices gpu: expected cpu, cuda, cuda:N or mps"),
        ("run:\n  device: [cpu]\n", ["--devices", "cpu"], "run.device cannot vary"),
        (GRID, ["run.dir=corpus.txt"], "corpus.txt"),
        (GRID, ["--random", "0"], "--random 0: expected at least 1"),
        (GRID, ["--seed", "3"], "--seed is of random trials"),
    ],
)
def test_a_mistake_gives_one_line_and_leaves_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], grid: str, options: list[str], words: str
) -> None:
    (here / "grid.yaml").write_text(grid, encoding="utf-8")
    try:
        code: object = sweep.main([*COMMAND, *options])
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "error: " in line)
    assert words in line
    assert not (here / "runs").exists()
