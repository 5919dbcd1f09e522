"""A configuration from a text, and a training by it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import Call
from gpt.config import Config
from gpt.config.sources import load_config
from tiny import CORPUS

TEXT = "'Mein Text.v2.txt'"


@pytest.fixture(autouse=True)
def _text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(TEXT[1:-1]).write_text(CORPUS * 30, encoding="utf-8")


def written(name: str = "Mein-Text.v2.yaml") -> Config:
    return load_config(Path(name)).config


def test_what_it_writes_trains(run: Call) -> None:
    assert run(f"make_config {TEXT}").out == "gpt train --config Mein-Text.v2.yaml\n"
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
    run(f"make_config {TEXT} --output 'my növel.yaml'")
    assert load_config(Path("my növel.yaml")).name == "my-növel"


def test_overrides_are_written_and_stay(run: Call, refuse: Callable[..., str]) -> None:
    run(f"make_config {TEXT} model.n_layer=1 data.val_fraction=0.05")
    assert (written().model.n_layer, written().data.val_fraction) == (1, 0.05)
    refuse(f"train {TEXT} {SMALL}")  # which would write another one


SMALL = "model.n_layer=1 train.batch_size=2 train.sample_tokens=0 train.eval_max_tokens=512"


def test_a_text_trains_at_once_for_a_try_and_then_again(run: Call, refuse: Callable[..., str]) -> None:
    Path("日本.txt").write_text(CORPUS * 30, encoding="utf-8")
    said = run(f"train 日本.txt {SMALL} train.max_steps=2").err
    length = len(CORPUS) * 30
    assert f"日本.yaml: 1 layers of 128, 128 positions, 2 steps of 2 sequences; {length:,} characters, each" in said
    recipe = Path("日本.yaml").read_text(encoding="utf-8")
    run("make_config 日本.txt --output same.yaml")
    assert Path("same.yaml").read_text(encoding="utf-8") == recipe  # without what was for the try
    run(f"train 日本.txt {SMALL} train.max_steps=3")
    assert {path.name for path in Path("runs").iterdir()} == {"日本", "日本.1"}
    run("train 日本.txt --print-config")
    Path("日本.txt").write_text(CORPUS * 90, encoding="utf-8")  # another recipe
    run(f"train ./日本.txt {SMALL} train.max_steps=3")
    assert {path.name for path in Path("runs").iterdir()} == {"日本", "日本.1", "日本.2"}
    recipe = Path("日本.yaml").read_text(encoding="utf-8")
    Path("日本.yaml").write_text(recipe.replace("n_layer: 4", "n_layer: 3"), encoding="utf-8")
    assert "日本.yaml is there already, and is not what fits this text (model.n_layer: 3 in place of 4)" in refuse(
        f"train 日本.txt {SMALL}"
    )


def test_a_text_is_read_as_its_overrides_say_which_are_written(run: Call) -> None:
    Path("mine.txt").write_text(CORPUS * 30, encoding="utf-8")
    run(f"train mine.txt {SMALL} train.max_steps=1 data.tokenizer=byte run.name=other")
    assert (written("mine.yaml").data.tokenizer, written("mine.yaml").run.name) == ("byte", None)
    assert Path("runs/other/last.json").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("gone.txt", "gone.txt: no such file"),
        (f"{TEXT} model.n_layers=2", "did you mean n_layer?"),
        (f"{TEXT} data.path=other.txt", "data.path is given twice"),
        (f"{TEXT} other.txt", "2 texts are given; name their folder, or put a pattern in quotes"),
        (f"{TEXT} --config mine.yaml", f"--config and the text {TEXT[1:-1]} are given"),
        ("mine.yaml", "mine.yaml is a configuration, not a text; train by it with: "),
        ("shakespeare", " train --config shakespeare"),
        ("train.max_steps", "nothing to train on"),
        ("train.txt", "train.txt: no such file"),
        (f"{TEXT} run.device=cuda:99", "device cuda:99: torch"),
        ("train.max_steps --config mine.yaml", "'train.max_steps' is not of the form section.key=value"),
    ],
)
def test_a_mistake_in_place_of_a_text_is_one_line(words: str, message: str, refuse: Callable[..., str]) -> None:
    Path("mine.yaml").write_text("{}")
    assert message in refuse(f"train {words}")
    assert [path.name for path in Path.cwd().glob("*.yaml")] == ["mine.yaml"]


def test_a_text_can_have_the_name_of_an_override(run: Call) -> None:
    Path("a=b.txt").write_text(CORPUS * 30, encoding="utf-8")
    assert "path: a=b.txt" in run(f"train a=b.txt {SMALL} --print-config train.init_from={'d' * 300}").out


def test_a_recipe_can_be_for_another_machine(run: Call) -> None:
    run(f"make_config {TEXT} run.device=cuda:99")
    assert written().run.device == "cuda:99"


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
