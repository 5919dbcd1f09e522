"""`scripts/quantize.py`, and what the other commands make of its result."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cli.conftest import Call
from gpt.checkpoint import read_checkpoint

Refuse = Callable[..., str]


@pytest.fixture
def int8(here: Path, tmp_path: Path, run: Call) -> Path:
    """A quantized checkpoint of the tiny run."""
    said = run(f"quantize --checkpoint runs/tiny --output {tmp_path}/int8").err
    assert f"15.0 KiB of weights quantized to 6.56 KiB in {tmp_path / 'int8'}" in said
    return tmp_path / "int8"


def test_a_quantized_checkpoint_holds_integers_and_no_training(int8: Path) -> None:
    checkpoint = read_checkpoint(int8)
    assert checkpoint.model["h.0.mlp.c_fc.integers"].dtype == torch.int8
    assert "h.0.mlp.c_fc.weight" not in checkpoint.model
    assert checkpoint.training == {}
    folders = int8, next(Path("runs/tiny/checkpoints").iterdir())
    small, large = ((folder / "model.safetensors").stat().st_size for folder in folders)
    assert small < large


@pytest.mark.parametrize("weights", ["bf16", "int8", "int4"])
def test_saved_and_made_on_the_fly_give_the_same_text(weights: str, here: Path, tmp_path: Path, run: Call) -> None:
    saved = tmp_path / weights
    run(f"quantize --checkpoint runs/tiny --weights {weights} --output {saved}")
    one, *others = (
        run(f"sample --prompt It --max-new-tokens 40 --checkpoint {options}").out
        for options in (
            saved,
            f"runs/tiny --weights {weights}",
            f"{saved} --weights {weights}",
            f"{saved} --backend eager",
        )
    )
    assert others == [one] * 3


def test_stats_name_the_weights_and_the_loss_hardly_changes(int8: Path, run: Call) -> None:
    said = run(f"sample --checkpoint {int8} --max-new-tokens 3 --stats").err
    assert ", int8 weights, fp32 cache: 3 tokens" in said
    checkpoints = ("runs/tiny", int8, "runs/tiny --weights int8")
    plain, saved, fly = (run(f"evaluate --checkpoint {each}").json["loss"] for each in checkpoints)
    assert saved == fly == pytest.approx(plain, abs=0.01)


def test_quantized_weights_are_not_quantized_again_or_exported(int8: Path, tmp_path: Path, refuse: Refuse) -> None:
    new = f"--output {tmp_path}/new"
    for line, message in (
        (f"quantize --checkpoint runs/tiny --output {int8}", "exists already"),
        (f"quantize --checkpoint {int8} {new}", "weights are int8 already"),
        (f"quantize --checkpoint {int8} --weights int4 {new}", "weights are int8 already"),
        (f"sample --checkpoint {int8} --weights float32", "the model's weights are int8 already"),
        (f"sample --checkpoint {int8} --weights int4", "the model's weights are int8 already"),
        *(
            (f"export --to {to} --checkpoint {int8} {new}", "cannot be exported: the weights are int8")
            for to in EXPORTS
        ),
    ):
        assert message in refuse(line)
    assert [path.name for path in tmp_path.iterdir()] == ["int8"]


EXPORTS = ("hf", "gguf")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("run.name=int8", "exists already"),
        ("run.name=int8 --resume auto", "is a checkpoint, not a run"),
        ("run.name=other --resume {}", "cannot be trained"),
    ],
)
def test_a_quantized_checkpoint_is_neither_trained_nor_written_over(
    options: str, message: str, int8: Path, refuse: Refuse
) -> None:
    before = {path.name: path.read_bytes() for path in int8.iterdir()}
    assert message in refuse(f"train --config tiny.yaml run.dir={int8.parent} {options.format(int8)}")
    assert {path.name: path.read_bytes() for path in int8.iterdir()} == before
