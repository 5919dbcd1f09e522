"""/api/runs: every number as the run wrote it, and nothing but runs."""

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from gpt.checkpoint import RunFolder
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
    assert get(site, "/api/runs") == {"runs": ["tiny"], "training": None}
    run = get(site, "/api/runs/tiny")
    best = json.loads((folder / "tiny" / "best.json").read_text())
    assert (run["name"], run["training"], run["step"], run["max_steps"]) == ("tiny", False, 6, 6)
    assert (run["best_step"], run["best_val_loss"]) == (best["step"], best["val_loss"])
    assert run["tokenizer"] == "char"
    assert "corpus.txt" not in json.dumps(run)


def test_a_checkpoint_without_a_run_has_nothing_to_show(site: Served, folder: Path) -> None:
    shutil.copytree(next((folder / "tiny/checkpoints").iterdir()), folder / "quantized")
    assert get(site, "/api/runs")["runs"] == ["tiny"]
    get(site, "/api/runs/quantized", status=404)


def test_samples_are_listed_and_read_by_step(site: Served, folder: Path) -> None:
    assert get(site, "/api/runs/tiny")["samples"] == [3, 6]
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


def test_a_run_that_trains_says_so_and_how_far_it_is(site: Served, folder: Path) -> None:
    metrics, run, other = folder / "tiny" / "metrics.jsonl", RunFolder(folder / "tiny"), RunFolder(folder / "tiny")
    lines = [line for line in metrics.read_text().splitlines() if json.loads(line)["step"] <= 4]
    damaged = ['{"step": 5, "train/loss": 1', "[" * 100_000, '{"train/loss": 2}', ""]
    metrics.write_text("\n".join([*lines[:1] * 1000, *damaged[1:], *lines]) + "\n" + damaged[0])
    (folder / ".tiny.lock").touch()  # as a killed process leaves it
    assert not other.is_being_trained()
    run.lock()  # which looking does not prevent
    assert get(site, "/api/runs")["training"] == "tiny"
    described = get(site, "/api/runs/tiny")
    assert (described["training"], described["step"]) == (True, 4)
    assert other.is_being_trained()
    assert run.is_being_trained()
    run.unlock()
    assert get(site, "/api/runs")["training"] is None
    for content in ("", '"step"\n'):
        metrics.write_text(content)
        assert get(site, "/api/runs/tiny")["step"] == 0
    metrics.unlink()
    assert get(site, "/api/runs/tiny")["step"] == 0


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


def test_a_damaged_run_says_what_is_wrong(site: Served, folder: Path) -> None:
    (folder / "broken").mkdir()
    (folder / "broken" / "config.yaml").write_text("modle: {}")
    (folder / "empty").mkdir()
    assert set(get(site, "/api/runs")["runs"]) == {"tiny", "broken"}
    assert "did you mean model" in get(site, "/api/runs/broken", status=500)["error"]["message"]


@pytest.mark.parametrize("pointer", ["{", "[]", '{"step": "x"}', '{"step": 3, "val_loss": "low"}', '{"step": 1e999}'])
def test_a_damaged_pointer_is_no_best_loss(site: Served, folder: Path, pointer: str) -> None:
    (folder / "tiny" / "best.json").write_text(pointer)
    assert get(site, "/api/runs/tiny")["best_val_loss"] is None
