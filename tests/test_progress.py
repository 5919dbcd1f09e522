"""What takes long is announced; what does not is not."""

from threading import Event

import pytest

from gpt.progress import announced
from patience import PATIENCE


def test_a_long_wait_is_announced_once_while_it_lasts() -> None:
    said: list[str] = []
    heard = Event()

    def report(line: str) -> None:
        said.append(line)
        heard.set()

    with announced(report, "counting", seconds=0.0):
        assert heard.wait(PATIENCE)
    assert said == ["counting"]


def test_a_short_wait_and_one_that_fails_are_not() -> None:
    said: list[str] = []
    with announced(said.append, "counting", seconds=30):
        pass
    with pytest.raises(KeyboardInterrupt), announced(said.append, "counting", seconds=30):
        raise KeyboardInterrupt
    assert said == []
