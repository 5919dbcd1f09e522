"""What takes long is announced; what does not is not."""

import re
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from native_support import needs_compiler

import gpt
from gpt.serving import ServingEngine
from gpt.system.errors import GPTError
from gpt.system.progress import announced, counted
from patience import PATIENCE
from tiny import tiny_config

LETTERS = gpt.CharTokenizer("abcdefghijklmnopqrstuvw")
COPYING = "copying the weights for the native engine"


def test_a_long_wait_is_announced_again_and_again_while_it_lasts() -> None:
    said: list[str] = []
    heard = Event()

    def report(line: str) -> None:
        said.append(line)
        if len(said) == 3:
            heard.set()

    with announced(report, "counting", seconds=0.0, again=0.001):
        assert heard.wait(PATIENCE)
    assert said[0] == "counting"
    assert all(re.fullmatch(r"counting \(\d+ s so far\)", line) for line in said[1:3])


def test_where_there_is_no_bar_a_line_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' standard error is no terminal."""
    monkeypatch.setattr("gpt.system.progress.SILENCE", 0.0)
    said: list[str] = []
    heard = Event()

    def report(line: str) -> None:
        said.append(line)
        heard.set()

    with counted(report, "reading", 2000, "pages") as advance:
        advance(1500)
        assert heard.wait(PATIENCE)
    assert said[0] in ("reading: 0 of 2,000 pages", "reading: 1,500 of 2,000 pages")  # the first may have come sooner


def test_a_short_wait_and_one_that_fails_are_not() -> None:
    said: list[str] = []
    with announced(said.append, "counting", seconds=30):
        pass
    with pytest.raises(KeyboardInterrupt), announced(said.append, "counting", seconds=30):
        raise KeyboardInterrupt
    assert said == []


@pytest.mark.parametrize(
    ("slow", "action", "line"),
    [
        ("gpt.checkpoint.loading.build_model", lambda: gpt.load("runs/tiny"), "loading the model"),
        ("gpt.checkpoint.loading.build_model", lambda: gpt.Run("runs/tiny").model, "loading the model"),
        pytest.param(
            "gpt.generation.native_runner.lay_out_weights",
            lambda: gpt.generate(gpt.GPT(tiny_config()), LETTERS, "a"),
            COPYING,
            marks=needs_compiler,
        ),
        pytest.param(
            "gpt.generation.native_runner.lay_out_weights",
            lambda: ServingEngine(gpt.GPT(tiny_config()), LETTERS),
            COPYING,
            marks=needs_compiler,
        ),
        (
            "gpt.training.plan.find_resume_point",
            lambda: gpt.train(config="tiny.yaml", resume="auto"),
            "reading the checkpoint",
        ),
    ],
)
def test_no_public_function_is_silent_for_long(
    slow: str, action: Callable[[], Any], line: str, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Event()

    def write(said: str, file: object) -> None:
        if said == line:
            heard.set()

    def wait_for_the_line(*given: Any, **named: Any) -> None:
        raise GPTError("it was said" if heard.wait(PATIENCE) else "nothing was said")

    monkeypatch.chdir(trained)
    monkeypatch.setattr("gpt.system.progress.SILENCE", 0.0)
    monkeypatch.setattr("gpt.system.progress.tqdm.write", write)
    monkeypatch.setattr(slow, wait_for_the_line)
    with pytest.raises(GPTError, match="it was said"):
        action()
