"""A configuration from a text, and a training by it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import Call
from gpt.config import Config
from gpt.config.loading import load_config
from tiny import CORPUS

TEXT = "'Mein Text.v2.txt'"


@pytest.fixture(autouse=True)
def _text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(TEXT[1:-1]).write_text(CORPUS * 30, encoding="utf-8")


def written(name: str = "Mein-Text.v2.yaml") -> Config:
    return load_config(Path(name)).config


def test_what_it_writes_trains(run: Call) -> None:
    assert run(f"make_config {TEXT}").out == "python scripts/train.py --config Mein-Text.v2.yaml\n"
    assert f"{len(CORPUS) * 30:,} characters" in Path("Mein-Text.v2.yaml").read_text(encoding="utf-8")
    run("train --config Mein-Text.v2.yaml train.max_steps=2 train.batch_size=2 train.sample_tokens=0")
    assert Path("runs/Mein-Text.v2/last.json").is_file()


def test_the_text_is_found_from_the_folder_of_the_file(run: Call, tmp_path: Path) -> None:
    run(f"make_config {TEXT} --output here.yaml")
    assert written("here.yaml").data.path == TEXT[1:-1]
    (tmp_path / "sub").mkdir()
    run(f"make_config {TEXT} --output sub/there.yaml")
    assert written("sub/there.yaml").data.path == str(tmp_path / TEXT[1:-1])


def test_a_name_that_no_run_can_have_becomes_one(run: Call) -> None:
    run(f"make_config {TEXT} train.teacher_share=null --output 'my növel.yaml'")
    assert load_config(Path("my növel.yaml")).name == "my-növel"
    assert written("my növel.yaml").train.teacher_share is None


def test_overrides_are_written(run: Call, refuse: Callable[..., str]) -> None:
    Path(TEXT[1:-1]).write_text((CORPUS * 30).replace("\n", "\r\n"), encoding="utf-8", newline="")
    assert "data.newlines" in refuse(f"make_config {TEXT}")
    run(f"make_config {TEXT} data.newlines=lf model.n_layer=1 data.val_fraction=0.05")
    assert (written().data.newlines, written().model.n_layer, written().data.val_fraction) == ("lf", 1, 0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
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
