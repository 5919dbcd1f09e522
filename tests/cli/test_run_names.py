"""A run may be given by its name alone, wherever a command or a function asks for a run."""

from pathlib import Path

import pytest

import gpt
from cli.conftest import Call, Refuse

COMMANDS = (
    "sample --max-new-tokens 2 --checkpoint",
    "evaluate --checkpoint",
    "export --to html --output tiny.html --checkpoint",
    "quantize --weights int8 --output tiny-int8 --checkpoint",
    "explain memory --checkpoint",
    "explain attention --prompt To --checkpoint",
    "plot --output tiny.png",
    "runs",
    "train --resume",
    "train --config tiny.yaml run.name=tuned train.max_steps=2 train.init_from",
    "train --config tiny.yaml run.name=student train.max_steps=2 train.teacher",
)
"""Commands that end with a run, each as a user would type it."""


def with_run(command: str, name: str) -> str:
    is_override = command.endswith(("init_from", "teacher"))
    separator = "=" if is_override else " "
    return command + separator + name


@pytest.mark.parametrize("command", COMMANDS)
def test_command_takes_the_name_of_a_run(own: Path, run: Call, command: str) -> None:
    run(with_run(command, "tiny"))


@pytest.mark.parametrize("command", [*COMMANDS, "serve --checkpoint"])
def test_command_suggests_the_run_that_was_meant(own: Path, refuse: Refuse, command: str) -> None:
    message = refuse(with_run(command, "tina"))
    assert "tina: no such run" in message
    assert message.endswith("; did you mean tiny?")
    made = {path.name for path in own.glob("runs/*")} | {path.name for path in own.glob("tiny-*")}
    assert made == {"tiny"}, "something was written before the mistake was found"


def test_python_takes_the_name_of_a_run(here: Path) -> None:
    model, tokenizer = gpt.load("tiny")
    assert model.vocab_size >= tokenizer.vocab_size
    assert gpt.Run("tiny").folder == Path("runs/tiny")
    assert len(gpt.plot("tiny").axes[0].lines) == 2
    for function in (gpt.load, gpt.Run, gpt.plot):
        with pytest.raises(gpt.GPTError, match=r"did you mean tiny\?$"):
            function("tina")


def test_run_at_a_path_wins_over_a_run_of_that_name(own: Path, run: Call) -> None:
    """The same name may be a run in this folder and another one in `runs`."""
    (own / "runs/tiny").rename(own / "tiny")
    run("train --config tiny.yaml run.name=tiny run.seed=2")
    assert "using tiny/checkpoints" in run("sample --max-new-tokens 2 --checkpoint tiny").err
    assert "using runs/tiny" in run("sample --max-new-tokens 2 --checkpoint runs/tiny").err
