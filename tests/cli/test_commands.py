"""The command `gpt`: its help, its mistakes and recipes."""

from collections.abc import Callable
from pathlib import Path

import pytest

import gpt
from cli.conftest import Result
from gpt.cli import commands
from gpt.config.sources import load_config


def call(capsys: pytest.CaptureFixture[str], *words: str) -> Result:
    try:
        code = commands.main(words)
    except SystemExit as stop:
        code = int(str(stop.code or 0))
    return Result(code, *capsys.readouterr())


def test_help_lists_every_command_and_each_has_help_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    listed = call(capsys).out
    assert listed == call(capsys, "--help").out
    for name, command in commands.COMMANDS.items():
        assert command.summary in listed
        own = call(capsys, name, "--help").out
        assert " ".join(own.split()).startswith(f"usage: gpt {name} [-h]")  # a long name ends the line
        assert f"example:\n  gpt {name} " in own


def test_a_command_runs_with_its_own_options(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "train", "--config", "quickstart", "run.name=x", "--print-config")
    assert (code, out.splitlines()[:2]) == (0, ["run:", "  name: x"])
    assert call(capsys, "sample", "--seed", "a")[0] == 2


def test_the_version_is_told_with_what_matters_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "--version").out.startswith(f"gpt {gpt.__version__}, torch ")


@pytest.mark.parametrize(
    ("word", "told"), [("trian", "no command 'trian'; did you mean train?"), ("--nonsense", "unrecognized arguments")]
)
def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], word: str, told: str) -> None:
    code, out, error = call(capsys, word)
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert told in error


def test_a_recipe_is_found_by_its_name_but_a_file_of_that_name_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuse: Callable[..., str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").mkdir()
    assert load_config("quickstart").config.data.source == "pydocs"
    assert "did you mean the recipe, quickstart?" in refuse("train --config configs/quickstart.yaml")
    assert "neither a file nor a recipe; did you mean quickstart?" in refuse("train --config quickstar")
    (tmp_path / "quickstar.yaml").touch()
    assert "neither a file nor a recipe; did you mean quickstar.yaml?" in refuse("train --config quickstar")
    (tmp_path / "text8").write_text("data: {source: pydocs}")
    assert load_config("text8").config.data.source == "pydocs"
