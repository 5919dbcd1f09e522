"""`gpt runs`: what it says of runs that are finished, stopped, damaged, and of their seeds."""

import json
import statistics
from pathlib import Path

import pytest

from gpt.checkpoint import RunFolder
from gpt.cli import runs, train
from gpt.model import GPT


@pytest.fixture
def folder(workplace: Path) -> Path:
    """A working folder with three finished runs, of which two differ in their seeds only."""
    for name, changes in (
        ("first", ["run.seed=1"]),
        ("second", ["run.seed=2"]),
        ("wider", ["run.seed=1", "model.n_embd=32"]),
    ):
        assert train.main(["--config", "tiny.yaml", f"run.name={name}", *changes]) == 0
    return workplace


def list_runs(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, object]:
    capsys.readouterr()
    assert runs.main(["--json", *options]) == 0
    summary: dict[str, object] = json.loads(capsys.readouterr().out)
    return summary


def test_runs_says_what_a_finished_run_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = list_runs(capsys, "first")["runs"]
    assert isinstance(listed, list)
    (run,) = listed
    rows = [
        json.loads(line) for line in (folder / "runs/first/metrics.jsonl").read_text().splitlines()
    ]
    best = min((row for row in rows if "val/loss" in row), key=lambda row: row["val/loss"])
    assert run["best_loss"] == best["val/loss"]
    assert run["bits_per_char"] == best["val/bits_per_char"]
    assert (run["step"], run["max_steps"], run["status"]) == (6, 6, "finished")
    config = RunFolder(folder / "runs/first").config()
    assert config is not None
    assert run["parameters"] == sum(weight.numel() for weight in GPT(config.model).parameters())


def test_diff_gives_mean_and_deviation_over_seeds(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = list_runs(capsys, "--diff")
    assert summary["differing_keys"] == ["model.n_embd"]
    listed, groups = summary["runs"], summary["groups"]
    assert isinstance(listed, list)
    assert isinstance(groups, list)
    loss = {run["name"]: run["best_loss"] for run in listed}
    by_names = {tuple(group["runs"]): group for group in groups}
    assert set(by_names) == {("first", "second"), ("wider",)}
    seeds = by_names["first", "second"]
    assert seeds["mean"] == pytest.approx(statistics.mean([loss["first"], loss["second"]]))
    assert seeds["deviation"] == pytest.approx(statistics.stdev([loss["first"], loss["second"]]))
    assert by_names[("wider",)]["deviation"] is None


def test_runs_that_are_stopped_or_damaged_are_listed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    longer = (
        (folder / "runs/second/config.yaml").read_text().replace("max_steps: 6", "max_steps: 9")
    )
    (folder / "runs/second/config.yaml").write_text(longer)
    (folder / "runs/wider/config.yaml").write_text("model: {n_layers: 3}\n")
    listed = list_runs(capsys)["runs"]
    assert isinstance(listed, list)
    status = {run["name"]: run["status"] for run in listed}
    assert status == {"first": "finished", "second": "stopped", "wider": "unreadable"}
    assert runs.main([]) == 0
    printed = capsys.readouterr().out
    assert "6 of 9" in printed
    assert "did you mean n_layer?" in printed


def test_an_unknown_run_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert runs.main(["frist"]) == 2
    assert capsys.readouterr().err == "error: runs/frist: no such run; did you mean first?\n"
    assert runs.main(["--runs", "elsewhere"]) == 2
    assert "there is no folder elsewhere" in capsys.readouterr().err
