"""A configuration from a text, and a training by it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cli.conftest import Call
from gpt.config import Config
from gpt.config.loading import load_config
from gpt.device import Compute
from gpt.training.fitting import predict_memory
from tiny import CORPUS

TEXT = "'Mein Text.v2.txt'"


@pytest.fixture(autouse=True)
def _text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(TEXT[1:-1]).write_text(CORPUS * 30, encoding="utf-8")


def written(name: str = "Mein-Text.yaml") -> Config:
    return load_config(Path(name)).config


def test_what_it_writes_trains(run: Call) -> None:
    assert run(f"make_config {TEXT}").out == "python scripts/train.py --config Mein-Text.yaml\n"
    assert f"{len(CORPUS) * 30:,} characters" in Path("Mein-Text.yaml").read_text(encoding="utf-8")
    run("train --config Mein-Text.yaml train.max_steps=2 train.batch_size=2 train.sample_tokens=0")
    assert Path("runs/Mein-Text/last.json").is_file()


def test_the_text_is_found_from_the_folder_of_the_file(run: Call, tmp_path: Path) -> None:
    run(f"make_config {TEXT} --output here.yaml")
    assert written("here.yaml").data.path == TEXT[1:-1]
    (tmp_path / "sub").mkdir()
    run(f"make_config {TEXT} --output sub/there.yaml")
    assert written("sub/there.yaml").data.path == str(tmp_path / TEXT[1:-1])


def test_a_name_that_no_run_can_have_becomes_one(run: Call) -> None:
    run(f"make_config {TEXT} train.teacher_share=null --output 'my növel.yaml'")
    assert load_config(Path("my növel.yaml")).name == "my-n-vel"
    assert written("my növel.yaml").train.teacher_share is None


def test_overrides_are_written(run: Call, refuse: Callable[..., str]) -> None:
    Path(TEXT[1:-1]).write_text((CORPUS * 30).replace("\n", "\r\n"), encoding="utf-8", newline="")
    assert "data.newlines" in refuse(f"make_config {TEXT}")
    run(f"make_config {TEXT} data.newlines=lf model.n_layer=1 data.val_fraction=0.05")
    assert (written().data.newlines, written().model.n_layer, written().data.val_fraction) == ("lf", 1, 0.05)


def test_what_it_writes_for_a_size_of_memory_is_split_to_fit_and_trains(run: Call) -> None:
    tiny = "model.n_layer=1 model.n_embd=32 model.n_head=1 train.teacher_share=null run.dtype=float32"
    assert "run.memory=14MB, 13 MiB: train.batch_size=" in run(f"make_config {TEXT} --memory 14MB {tiny}").err
    config = written()
    train, sized = config.train, config.model.model_copy(update={"vocab_size": 65})
    assert config.run.memory == "14MB"
    assert config.model.vocab_size is None
    assert (train.sequences, train.batch_size < 12) == (12, True)
    cpu = Compute(torch.device("cpu"), torch.float32)
    peak = predict_memory(config.model_copy(update={"model": sized}), train.batch_size, 256, cpu).peak
    assert peak < 14e6
    run(
        "train --config Mein-Text.yaml run.device=cpu train.max_steps=1 train.sample_tokens=0 train.eval_max_tokens=300"
    )
    assert Path("runs/Mein-Text/last.json").is_file()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (f"{TEXT} --memory lots", "run.memory: got 'lots', expected auto, or a size"),
        (f"{TEXT} data.path=other.txt", "data.path"),
        (f"{TEXT} model.n_layers=2", "model.n_layers"),
        (f"{TEXT} model.n_layer=x", "model.n_layer"),
        (f"{TEXT} model.block_size=5000", "block_size"),
        (f"{TEXT} --output mine", "exists already"),
        ("gone.txt", "no such file"),
        ("mine", "has 200 characters"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(options: str, message: str, refuse: Callable[..., str]) -> None:
    Path("mine").write_text("too short\n" * 20)
    assert message in refuse(f"make_config {options}")
    assert not list(Path.cwd().glob("*.yaml"))
    assert Path("mine").read_text() == "too short\n" * 20
