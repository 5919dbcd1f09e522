"""A configuration from a text, and a training by it."""

from pathlib import Path

import pytest

from gpt.cli import make_config, train
from gpt.config import load_config
from tiny import CORPUS


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("Mein Text.v2.txt").write_text(CORPUS * 30, encoding="utf-8")
    return "Mein Text.v2.txt"


def test_what_it_writes_trains(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert make_config.main([text]) == 0
    assert capsys.readouterr().out == "python scripts/train.py --config Mein-Text.yaml\n"
    assert f"{len(CORPUS) * 30:,} characters" in Path("Mein-Text.yaml").read_text(encoding="utf-8")
    smaller = ["train.max_steps=2", "train.batch_size=2", "train.sample_tokens=0"]
    assert train.main(["--config", "Mein-Text.yaml", *smaller]) == 0
    assert Path("runs/Mein-Text/last.json").is_file()


def test_the_text_is_found_from_the_folder_of_the_file(text: str, tmp_path: Path) -> None:
    assert make_config.main([text, "--output", "here.yaml"]) == 0
    assert load_config(Path("here.yaml")).config.data.path == text
    (tmp_path / "sub").mkdir()
    assert make_config.main([text, "--output", "sub/there.yaml"]) == 0
    assert load_config(Path("sub/there.yaml")).config.data.path == str(tmp_path / text)


def test_a_name_that_no_run_can_have_becomes_one(text: str) -> None:
    assert make_config.main([text, "train.teacher_share=null", "--output", "my növel.yaml"]) == 0
    assert load_config(Path("my növel.yaml")).name == "my-n-vel"
    assert load_config(Path("my növel.yaml")).config.train.teacher_share is None


def test_a_split_that_fills_no_block_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert make_config.main([text, "data.val_fraction=0.05"]) == 0
    assert make_config.main([text, "model.block_size=5000", "--output", "b.yaml"]) == 2
    assert "block_size" in capsys.readouterr().err.splitlines()[-1]
    assert not Path("b.yaml").exists()


def test_overrides_are_written(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(text).write_text((CORPUS * 30).replace("\n", "\r\n"), encoding="utf-8", newline="")
    assert make_config.main([text]) == 2
    assert "data.newlines" in capsys.readouterr().err
    assert make_config.main([text, "data.newlines=lf", "model.n_layer=1"]) == 0
    config = load_config(Path("Mein-Text.yaml")).config
    assert (config.data.newlines, config.model.n_layer) == ("lf", 1)


@pytest.mark.parametrize("override", ["data.path=other.txt", "model.n_layers=2", "model.n_layer=x"])
def test_a_wrong_override_gives_one_line(override: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert make_config.main([text, override]) == 2
    assert override.split("=")[0] in capsys.readouterr().err.splitlines()[-1]
    assert not Path("Mein-Text.yaml").exists()


def test_a_file_that_exists_stays_as_it_is(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("Mein-Text.yaml").write_text("mine")
    assert make_config.main([text]) == 2
    assert "exists already" in capsys.readouterr().err
    assert Path("Mein-Text.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    ("content", "message"), [(None, "no such file"), ("too short\n" * 20, "has 200 characters")], ids=["none", "short"]
)
def test_a_text_that_is_missing_or_too_short_gives_one_line(
    content: str | None,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("a.txt").write_text(content)
    assert make_config.main(["a.txt"]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not Path("a.yaml").exists()
