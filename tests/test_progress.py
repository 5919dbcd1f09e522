"""What takes long is announced; what does not is not."""

import re
from threading import Event

import pytest

from gpt.progress import announced, counted
from patience import PATIENCE


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
    monkeypatch.setattr("gpt.progress.SILENCE", 0.0)
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
