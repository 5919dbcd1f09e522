"""/api/runs: every number as the run wrote it, and nothing but runs."""

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from gpt.accounting.parameters import count_parameters
from gpt.checkpoint import RunFolder
from gpt.config.loading import load_config
from gpt.serving.http.playground.curves import read_curves
from http_server import Serve, Served
from patience import PATIENCE


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """A runs folder with one finished run, that a test may change."""
    shutil.copytree(trained / "runs", tmp_path / "runs")
    return tmp_path / "runs"


@pytest.fixture
def site(folder: Path, serve: Serve) -> Iterator[Served]:
    with serve(folder=folder) as served:
        yield served


def get(site: Served, path: str, status: int = 200) -> Any:
    answer = site.get(path)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_a_finished_run_is_described_by_what_it_wrote(site: Served, folder: Path) -> None:
    (run,) = get(site, "/api/runs")["runs"]
    best = json.loads((folder / "tiny" / "best.json").read_text())
    config = load_config(folder / "tiny" / "config.yaml").config
    assert (run["name"], run["training"], run["step"], run["max_steps"]) == ("tiny", False, 6, 6)
    assert (run["best_step"], run["best_val_loss"]) == (best["step"], best["val_loss"])
    assert run["parameters"] == count_parameters(config.model).total
    assert run["has_checkpoint"]
    assert run["seconds_left"] is None
    assert run["config"]["model.n_embd"] == 16
    assert run["problem"] is None
    assert "corpus.txt" not in json.dumps(run)


def test_a_checkpoint_without_a_run_has_no_curves_to_show(site: Served, folder: Path) -> None:
    shutil.copytree(next((folder / "tiny/checkpoints").iterdir()), folder / "quantized")
    assert [run["name"] for run in get(site, "/api/runs")["runs"]] == ["tiny"]
    get(site, "/api/runs/quantized", status=404)


def test_the_curves_are_the_metrics_of_the_run(site: Served, folder: Path) -> None:
    run = get(site, "/api/runs/tiny")
    curves = read_curves(folder / "tiny" / "metrics.jsonl")
    assert (run["training_curve"], run["validation_curve"]) == (curves.training, curves.validation)
    assert (run["training_curve"]["step"], run["validation_curve"]["step"]) == ([1, 2, 3, 4, 5, 6], [0, 3, 6])
    assert (run["every"], run["last_step"]) == (1, 6)
    later = get(site, "/api/runs/tiny?after=3")
    assert (later["training_curve"]["step"], later["validation_curve"]["step"]) == ([4, 5, 6], [6])


def test_samples_are_listed_and_read_by_step(site: Served, folder: Path) -> None:
    assert get(site, "/api/runs/tiny")["samples"] == [0, 3, 6]
    text = (folder / "tiny" / "samples" / "step-000003.txt").read_text()
    assert get(site, "/api/runs/tiny/samples/3") == {"step": 3, "text": text[:-1], "truncated": False}
    (folder / "tiny" / "samples" / "step-000003.txt").write_text("é" * 20_000)
    assert get(site, "/api/runs/tiny/samples/3") == {"step": 3, "text": "é" * 10_000, "truncated": True}
    get(site, "/api/runs/tiny/samples/4", status=404)


def test_many_samples_are_thinned_and_the_last_one_stays(site: Served, folder: Path) -> None:
    for step in range(1000):
        (folder / "tiny" / "samples" / f"step-{step:06d}.txt").write_text("a")
    steps = get(site, "/api/runs/tiny")["samples"]
    assert steps == [*range(0, 1000, 6), 999]


def test_a_run_that_trains_says_so_and_when_it_will_be_done(site: Served, folder: Path) -> None:
    metrics, run, other = folder / "tiny" / "metrics.jsonl", RunFolder(folder / "tiny"), RunFolder(folder / "tiny")
    lines = [line for line in metrics.read_text().splitlines() if json.loads(line)["step"] <= 4]
    metrics.write_text("\n".join(lines) + "\n")
    (folder / ".tiny.lock").touch()  # as a killed process leaves it
    assert not other.is_being_trained()
    run.lock()  # which looking does not prevent
    described = get(site, "/api/runs")["runs"][0]
    assert described["training"]
    assert described["seconds_left"] == pytest.approx(json.loads(lines[-1])["speed/seconds"] / 4 * 2)
    assert other.is_being_trained()
    assert run.is_being_trained()
    run.unlock()
    assert not get(site, "/api/runs")["runs"][0]["training"]


OTHER_FOLDERS = (
    *("..", ".", "%2e%2e", "..%2Ftiny", "tiny%2F..", "%2Ftmp", "tiny/..", "../runs/tiny"),
    *("C:", "tiny%00", "missing", ".hidden", "*", "a" * 999),
)


@pytest.mark.parametrize("name", OTHER_FOLDERS)
def test_no_other_folder_can_be_named(site: Served, folder: Path, name: str) -> None:
    (folder.parent / "config.yaml").touch()
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "config.yaml").touch()
    for path in (f"/api/runs/{name}", f"/api/runs/{name}/samples/0"):
        # which sends the path as it is
        with closing(HTTPConnection("127.0.0.1", site.port, timeout=PATIENCE)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.status == 404
            assert b"model.n_embd" not in answer.read()


@pytest.mark.parametrize("query", ["after=x", "after=-2", "after=1e3", f"after={2**62}"])
def test_a_wrong_query_is_refused(site: Served, query: str) -> None:
    assert get(site, f"/api/runs/tiny?{query}", status=400)["error"]["param"] == "after"


def test_a_damaged_run_is_named_with_its_problem(site: Served, folder: Path) -> None:
    (folder / "broken").mkdir()
    (folder / "broken" / "config.yaml").write_text("modle: {}")
    (folder / "empty").mkdir()
    runs = {run["name"]: run for run in get(site, "/api/runs")["runs"]}
    assert set(runs) == {"tiny", "broken"}
    assert "did you mean model" in runs["broken"]["problem"]
    assert get(site, "/api/runs/broken")["training_curve"]["step"] == []


@pytest.mark.parametrize("pointer", ["{", "[]", '{"step": "x"}', '{"step": 3, "val_loss": "low"}', '{"step": 1e999}'])
def test_a_damaged_pointer_is_no_best_loss(site: Served, folder: Path, pointer: str) -> None:
    (folder / "tiny" / "best.json").write_text(pointer)
    assert get(site, "/api/runs")["runs"][0]["best_val_loss"] is None
