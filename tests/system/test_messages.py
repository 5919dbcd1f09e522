"""Messages: what a library's error says in one of ours, and what is said of work that takes long."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from native_support import needs_compiler

import gpt
from gpt.extras.serving import ServingEngine
from gpt.system.errors import GPTError, explained
from gpt.system.progress import announced, counted
from patience import PATIENCE
from tiny import tiny_config

LETTERS = gpt.CharTokenizer("abcdefghijklmnopqrstuvw")
LOADING = ("gpt.checkpoint.loading.build_model", "loading the model")
COPYING = ("gpt.generation.native_runner.lay_out_weights", "copying the weights for the native engine")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyError("muon"), "there is no 'muon'"),
        (KeyError(), "KeyError"),
        (OSError(28, "No space left on device", "a.txt"), "No space left on device"),
        (ValueError("first\nsecond"), "first"),
        (AttributeError(), "AttributeError"),
        (json.JSONDecodeError("Expecting value", "x", 0), "Expecting value: line 1 column 1 (char 0)"),
        (ValueError("\x1b[31m"), r"\x1b[31m"),
    ],
)
def test_an_error_is_explained_in_one_line_without_its_syntax(error: Exception, words: str) -> None:
    assert explained(error) == words


class Heard(list[str]):
    """Lines that were reported, until there are enough."""

    def __init__(self, enough: int) -> None:
        self._enough, self._event = enough, Event()

    def report(self, line: str) -> None:
        self.append(line)
        if len(self) == self._enough:
            self._event.set()

    def wait(self) -> bool:
        return self._event.wait(PATIENCE)


def test_long_work_is_announced_again_and_again_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    said = Heard(3)
    with announced(said.report, "counting", seconds=0.0, again=0.001):
        assert said.wait()
    assert said[0] == "counting"
    assert all(re.fullmatch(r"counting \(\d+ s so far\)", line) for line in said[1:3])
    monkeypatch.setattr("gpt.system.progress.SILENCE", 0.0)
    monkeypatch.setattr(announced.__wrapped__, "__defaults__", (None, 0.001))
    read, heard = "reading: 1,500 of 2,000 pages", Event()
    with counted(lambda line: line.startswith(read) and heard.set(), "reading", 2000, "pages") as advance:
        advance(1500)
        assert heard.wait(PATIENCE)


def test_short_or_interrupted_work_is_not_announced() -> None:
    said = Heard(1)
    with announced(said.report, "counting", seconds=30):
        pass
    with pytest.raises(KeyboardInterrupt), announced(said.report, "counting", seconds=30):
        raise KeyboardInterrupt
    assert said == []


@pytest.mark.parametrize(
    ("slow", "line", "action"),
    [
        (*LOADING, lambda: gpt.load("runs/tiny")),
        (*LOADING, lambda: gpt.Run("runs/tiny").model),
        pytest.param(*COPYING, lambda: gpt.generate(gpt.GPT(tiny_config()), LETTERS, "a"), marks=needs_compiler),
        pytest.param(*COPYING, lambda: ServingEngine(gpt.GPT(tiny_config()), LETTERS), marks=needs_compiler),
        (
            "gpt.training.train.find_resume_point",
            "reading the checkpoint",
            lambda: gpt.train(config="tiny.yaml", resume="auto"),
        ),
    ],
)
def test_public_functions_say_what_takes_long(
    slow: str, line: str, action: Callable[[], Any], trained: Path, monkeypatch: pytest.MonkeyPatch
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
