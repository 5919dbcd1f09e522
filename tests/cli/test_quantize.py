"""`scripts/quantize.py`, and what the other commands make of its result."""

import json
from pathlib import Path

import pytest
import torch

from gpt.checkpoint import read_checkpoint
from gpt.cli import evaluate, explain, quantize, sample, train


@pytest.fixture(autouse=True)
def _in_trained_folder(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)


@pytest.fixture
def int8(tmp_path: Path) -> Path:
    """A quantized checkpoint of the tiny run."""
    assert quantize.main(["--checkpoint", "runs/tiny", "--output", str(tmp_path / "int8")]) == 0
    return tmp_path / "int8"


def text_of(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    capsys.readouterr()
    assert sample.main(["--prompt", "It", "--max-new-tokens", "40", *options]) == 0
    return capsys.readouterr().out


def test_a_quantized_checkpoint_holds_integers_and_no_training(int8: Path) -> None:
    checkpoint = read_checkpoint(int8)
    assert checkpoint.model["h.0.mlp.c_fc.integers"].dtype == torch.int8
    assert "h.0.mlp.c_fc.weight" not in checkpoint.model
    assert checkpoint.training == {}
    assert checkpoint.ngrams is not None
    sizes = [
        (folder / "model.safetensors").stat().st_size
        for folder in (int8, next(Path("runs/tiny/checkpoints").iterdir()))
    ]
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize("weights", ["bf16", "int8", "int4"])
def test_saved_and_made_on_the_fly_give_the_same_text(
    weights: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = str(tmp_path / weights)
    assert quantize.main(["--checkpoint", "runs/tiny", "--weights", weights, "--output", output]) == 0
    saved = text_of(capsys, "--checkpoint", output)
    assert saved == text_of(capsys, "--checkpoint", "runs/tiny", "--weights", weights)
    assert saved == text_of(capsys, "--checkpoint", output, "--weights", weights)
    assert saved == text_of(capsys, "--checkpoint", output, "--backend", "eager")


def test_stats_name_the_weights(int8: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sample.main(["--checkpoint", str(int8), "--max-new-tokens", "3", "--stats"]) == 0
    assert ", int8 weights, fp32 cache: 3 tokens" in capsys.readouterr().err


def test_the_loss_hardly_changes(int8: Path, capsys: pytest.CaptureFixture[str]) -> None:
    losses = []
    for options in (
        ["--checkpoint", "runs/tiny"],
        ["--checkpoint", str(int8)],
        ["--checkpoint", "runs/tiny", "--weights", "int8"],
    ):
        assert evaluate.main(options) == 0
        losses.append(json.loads(capsys.readouterr().out.splitlines()[-1])["loss"])
    assert losses[1] == losses[2]
    assert losses[1] == pytest.approx(losses[0], abs=0.01)


def test_it_is_said_how_large_the_weights_were_and_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quantize.main(["--checkpoint", "runs/tiny", "--output", str(tmp_path / "x")]) == 0
    assert f"15.0 KiB of weights quantized to 6.56 KiB in {tmp_path / 'x'}" in capsys.readouterr().err


def test_mistakes_are_one_line(int8: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    for arguments, message in (
        (["--checkpoint", "runs/tiny", "--output", str(int8)], "exists already"),
        (["--checkpoint", "runs/gone", "--output", str(tmp_path / "x")], "gone"),
        (["--checkpoint", str(int8), "--output", str(tmp_path / "x")], "weights are int8 already"),
        (["--checkpoint", str(int8), "--weights", "int4", "--output", str(tmp_path / "x")], "weights are int8 already"),
    ):
        assert quantize.main(arguments) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
        assert not (tmp_path / "x").exists()
    for weights in ("float32", "int4"):
        assert sample.main(["--checkpoint", str(int8), "--weights", weights]) == 2
        assert "the model's weights are int8 already" in capsys.readouterr().err


@pytest.mark.parametrize("resume", [None, "auto", "here"])
def test_a_quantized_checkpoint_is_neither_trained_nor_written_over(
    resume: str | None, int8: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.read_bytes() for path in int8.iterdir()}
    options = ["--config", "tiny.yaml", f"run.dir={int8.parent}", f"run.name={'other' if resume == 'here' else 'int8'}"]
    resumed = {None: [], "auto": ["--resume", "auto"], "here": ["--resume", str(int8)]}[resume]
    assert train.main([*options, *resumed]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert {None: "exists already", "auto": "is a checkpoint, not a run", "here": "cannot be trained"}[resume] in line
    assert {path.name: path.read_bytes() for path in int8.iterdir()} == before


def test_a_walk_through_every_tensor_wants_float32_and_says_so(int8: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain.main(["walk", "--prompt", "It was", "--checkpoint", str(int8)]) == 2
    assert "only float32 weights can be traced, not int8" in capsys.readouterr().err
