"""/api/runs: every number as the run wrote it, its snapshots, and nothing but runs."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt.checkpoint import RunFolder, read_checkpoint
from gpt.data.tokenizers import CharTokenizer
from gpt.extras.inspection.views.snapshots import map_embedding, nearest_tokens
from gpt.extras.snapshots import take_snapshot
from gpt.system.errors import CheckpointError, GPTError
from http_server import Serve, Served
from patience import PATIENCE
from tiny import sharp_model


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


def test_run_is_described_by_what_it_wrote(site: Served, folder: Path) -> None:
    # A checkpoint without a run is not listed.
    shutil.copytree(next((folder / "tiny/checkpoints").iterdir()), folder / "quantized")
    assert get(site, "/api/runs") == {"runs": ["tiny"], "training": None}
    get(site, "/api/runs/quantized", status=404)
    run = get(site, "/api/runs/tiny")
    best = json.loads((folder / "tiny" / "best.json").read_text())
    assert (run["name"], run["training"], run["step"], run["max_steps"]) == ("tiny", False, 6, 6)
    assert (run["best_step"], run["best_val_loss"]) == (best["step"], best["val_loss"])
    assert run["tokenizer"] == "char"
    assert "corpus.txt" not in json.dumps(run)
    for pointer in (
        "{",
        "[]",
        '{"step": "x"}',
        '{"step": 3, "val_loss": "low"}',
        '{"step": 1e999}',
    ):
        (folder / "tiny" / "best.json").write_text(pointer)
        assert get(site, "/api/runs/tiny")["best_val_loss"] is None


def test_training_run_says_so_and_how_far_it_is(site: Served, folder: Path) -> None:
    metrics = folder / "tiny" / "metrics.jsonl"
    run = RunFolder(folder / "tiny")
    other = RunFolder(folder / "tiny")
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


HOSTILE: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "zeros": lambda file: file.symlink_to("/dev/zero"),
    "sparse": lambda file: (file.touch(), os.truncate(file, 3 << 30)),
    "brackets": lambda file: file.write_bytes(b"[" * 2_000_000),
    "loop": lambda file: file.symlink_to(file.name),
    "folder": Path.mkdir,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_foreign_run_of_any_content_does_not_delay_the_list(
    kind: str, site: Served, folder: Path
) -> None:
    checkpoint = next((folder / "tiny/checkpoints").iterdir()).relative_to(folder / "tiny")
    own = [
        "config.yaml",
        "metrics.jsonl",
        "best.json",
        "last.json",
        "snapshots/step-000006.safetensors",
    ]
    parts = [
        "manifest.json",
        "config.yaml",
        "tokenizer.json",
        "state.json",
        "optimizer.pt",
        "model.safetensors",
    ]
    names = [*own, *(f"{checkpoint}/{part}" for part in parts)]
    for number, name in enumerate(names):
        foreign = folder / f"foreign{number}"
        shutil.copytree(folder / "tiny", foreign)
        (foreign / name).unlink()
        HOSTILE[kind](foreign / name)
    began = time.monotonic()
    assert "tiny" in [model["id"] for model in get(site, "/v1/models")["data"]]
    assert "tiny" in get(site, "/api/runs")["runs"]
    for number in range(len(names)):
        for path in ("", "/snapshots/6?basis=6", "/snapshots/6?basis=0"):
            answer = site.get(f"/api/runs/foreign{number}{path}")
            assert answer.status_code in (200, 400, 404, 500)
            assert "\n" not in answer.json().get("error", {}).get("message", "")
    assert time.monotonic() - began < PATIENCE / 2
    for number, name in enumerate(names):
        with (
            pytest.raises(CheckpointError)
            if name.endswith(tuple(parts[1:])) and "/" in name
            else suppress(GPTError)
        ):
            read_checkpoint(folder / f"foreign{number}" / checkpoint)


OTHER_FOLDERS = (
    *("..", ".", "%2e%2e", "..%2Ftiny", "tiny%2F..", "%2Ftmp", "tiny/..", "../runs/tiny"),
    *("C:", "tiny%00", "missing", ".hidden", "*", "a" * 999),
)


def test_no_other_folder_can_be_named_and_damage_is_said(site: Served, folder: Path) -> None:
    for other in (folder.parent, folder / ".hidden", folder / "broken", folder / "empty"):
        other.mkdir(exist_ok=True)
    for other in (folder.parent, folder / ".hidden"):
        (other / "config.yaml").touch()
    (folder / "broken" / "config.yaml").write_text("modle: {}")
    for path in (
        f"/api/runs/{name}{rest}" for name in OTHER_FOLDERS for rest in ("", "/snapshots/0?basis=0")
    ):
        # This client sends a path as it is, without resolving its dots.
        with closing(HTTPConnection("127.0.0.1", site.port, timeout=PATIENCE)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            assert (answer.status, path) == (404, path)
            assert b"model.n_embd" not in answer.read()
    assert set(get(site, "/api/runs")["runs"]) == {"tiny", "broken"}
    assert "did you mean model" in get(site, "/api/runs/broken", status=500)["error"]["message"]


WORDS = {"prompt": "ab", "sample": "abc", "loss": 2.5}


def test_snapshot_is_seen_in_the_plane_of_another(site: Served, folder: Path) -> None:
    run = RunFolder(folder / "tiny")
    shutil.rmtree(run.snapshots)
    run.snapshots.mkdir()
    tokenizer = CharTokenizer("abcdef")
    models = [sharp_model(seed=seed, vocab_size=6) for seed in (0, 1)]
    for step, model in zip((0, 7), models, strict=True):
        run.snapshot(step).write_bytes(
            take_snapshot(model, tokenizer, torch.tensor([0, 1, 2]), WORDS)
        )
    run.snapshot(8).write_bytes(b"damaged")
    other = take_snapshot(
        sharp_model(vocab_size=5), CharTokenizer("abcde"), torch.tensor([0]), WORDS
    )
    run.snapshot(9).write_bytes(other)
    assert get(site, "/api/runs/tiny")["snapshots"] == [0, 7, 8, 9]
    shown = get(site, "/api/runs/tiny/snapshots/0?basis=7")
    assert {name: shown[name] for name in WORDS} == WORDS
    assert shown["step"] == 0
    assert (shown["line"], shown["tokens"]) == ([*"abc"], [*"abcdef"])
    first, last = (model.wte.weight.detach().half().float() for model in models)
    assert torch.allclose(torch.tensor(shown["points"]), map_embedding(first, last), atol=1e-3)
    assert shown["nearest"] == nearest_tokens(first, 4)
    config = models[0].config
    assert [len(heads) for heads in shown["attention"]] == [config.n_head] * config.n_layer
    assert shown["points"] == [[round(x, 3), round(y, 3)] for x, y in shown["points"]]
    for path, status in {"0?basis=3": 404, "3?basis=0": 404, "0?basis=9": 400}.items():
        get(site, f"/api/runs/tiny/snapshots/{path}", status)
    for path in (
        "9" * 260 + "?basis=0",
        "0?basis=" + "9" * 260,
        "0?basis=-1",
        "-1?basis=0",
        "x?basis=0",
    ):
        get(site, f"/api/runs/tiny/snapshots/{path}", 400)
    error = get(site, "/api/runs/tiny/snapshots/8?basis=7", 500)["error"]["message"]
    assert "damaged snapshot" in error
    assert str(folder) not in error


def test_texts_of_a_run_are_those_of_its_snapshots(site: Served, folder: Path) -> None:
    run = RunFolder(folder / "tiny")
    shutil.rmtree(run.snapshots)
    run.snapshots.mkdir()
    model = sharp_model(vocab_size=6)
    for step, words in ((0, WORDS), (3, {**WORDS, "sample": ""}), (7, {**WORDS, "sample": "d"})):
        content = take_snapshot(model, CharTokenizer("abcdef"), torch.tensor([0, 1]), words)
        run.snapshot(step).write_bytes(content)
    run.snapshot(8).write_bytes(b"damaged")
    assert get(site, "/api/runs/tiny/texts")["texts"] == [
        {"step": 0, "prompt": "ab", "sample": "abc"},
        {"step": 7, "prompt": "ab", "sample": "d"},
    ]
    get(site, "/api/runs/missing/texts", status=404)
