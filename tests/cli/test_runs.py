"""`gpt runs`: what it says of runs that are finished, stopped, damaged, and of their seeds."""

import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

import gpt
from gpt.checkpoint import RunFolder, read_checkpoint
from gpt.cli import quantize, runs, train
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
    listed = summary["runs"]
    groups = summary["groups"]
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
    assert capsys.readouterr().err == "error: frist: no such run; did you mean first?\n"
    (folder / "text").mkdir()
    assert runs.main(["text"]) == 2
    assert capsys.readouterr().err == "error: text is not a run folder: it has no config.yaml\n"
    assert runs.main(["--runs", "elsewhere"]) == 2
    assert "there is no folder elsewhere" in capsys.readouterr().err


def test_run_is_named_by_its_path_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = list_runs(capsys, "runs/first", "wider", "first")["runs"]
    assert isinstance(listed, list)
    assert sorted(run["name"] for run in listed) == ["first", "wider"]


@pytest.mark.parametrize("weights", ["int8", "int4", "bf16"])
def test_quantized_copy_of_a_run_is_listed_as_weights_only(
    folder: Path, capsys: pytest.CaptureFixture[str], weights: str
) -> None:
    copy = ["--checkpoint", "first", "--weights", weights, "--output", "runs/copy"]
    assert quantize.main(copy) == 0
    summary = list_runs(capsys, "--diff", "copy", "first")
    listed = summary["runs"]
    assert isinstance(listed, list)
    by_name = {run["name"]: run for run in listed}
    assert by_name["copy"]["status"] == "weights only"
    assert by_name["copy"]["best_loss"] is None
    assert by_name["copy"]["parameters"] == by_name["first"]["parameters"]
    assert by_name["copy"]["text"] == by_name["first"]["text"]
    assert summary["differing_keys"] == [], "a copy has no training to compare"
    assert runs.main(["copy"]) == 0
    assert "weights only" in capsys.readouterr().out


def test_model_that_no_training_made_has_no_text(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpt.save(*gpt.load("first"), folder / "runs/saved")
    listed = list_runs(capsys, "saved")["runs"]
    assert isinstance(listed, list)
    (run,) = listed
    assert (run["text"], run["status"]) == ("", "weights only")


def test_seeds_on_an_edited_text_are_another_group(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = next(folder.glob("*.txt"))
    text.write_text(text.read_text()[::-1])
    changes = ["run.name=edited", "run.seed=3"]
    assert train.main(["--config", "tiny.yaml", *changes]) == 0
    groups = list_runs(capsys, "--diff", "first", "second", "edited")["groups"]
    assert isinstance(groups, list)
    assert {tuple(group["runs"]) for group in groups} == {("first", "second"), ("edited",)}
    assert runs.main(["--diff", "first", "second", "edited"]) == 0
    assert "(another text)" in capsys.readouterr().out


def test_run_without_its_last_evaluation_is_not_finished(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C may come between the last step and its evaluation."""
    run_folder = RunFolder(folder / "runs/first")
    last = run_folder.pointed("last")
    assert last is not None
    checkpoint = read_checkpoint(last)
    state = {**checkpoint.state, "evaluated_step": 3}
    run_folder.save(replace(checkpoint, state=state), best=False, keep_last=9)
    listed = list_runs(capsys, "first")["runs"]
    assert isinstance(listed, list)
    assert listed[0]["status"] == "stopped"
