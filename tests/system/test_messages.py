"""Messages: what ours say of a library's error, and what is said of work that takes long."""

import json
import re
from threading import Event

import pytest

from gpt.system.errors import explained
from gpt.system.progress import announce_if_slow, progress_bar
from patience import PATIENCE


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyError("muon"), "there is no 'muon'"),
        (KeyError(), "KeyError"),
        (OSError(28, "No space left on device", "a.txt"), "No space left on device"),
        (ValueError("first\nsecond"), "first"),
        (AttributeError(), "AttributeError"),
        (
            json.JSONDecodeError("Expecting value", "x", 0),
            "Expecting value: line 1 column 1 (char 0)",
        ),
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


def test_long_work_is_announced_again_and_again() -> None:
    said = Heard(3)
    with announce_if_slow(said.report, "counting", seconds=0.0, interval=0.001):
        assert said.wait()
    assert said[0] == "counting"
    assert all(re.fullmatch(r"counting \(\d+ s so far\)", line) for line in said[1:3])


def test_long_work_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpt.system.progress.ANNOUNCE_AFTER", 0.1)
    said = Heard(1)
    with progress_bar(said.report, "reading", 2000, "pages") as advance:
        advance(1000)
        advance(500)
        assert said.wait()
    assert said[0] == "reading: 1,500 of 2,000 pages"
