"""The display of a notebook, without one."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gpt.api import live_curve
from gpt.api.live_curve import LiveCurve


class Screen:
    """Stands for IPython.display: keeps what is shown, in one place."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.now = 0.0

    def display(self, html: str, display_id: bool) -> "Screen":
        assert display_id, "without it nothing could be updated"
        self.shown.append(html)
        return self

    def update(self, html: str) -> None:
        self.shown.append(html)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    screen = Screen()
    module: Any = ModuleType("IPython.display")
    module.HTML, module.display = str, screen.display
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr(live_curve, "time", SimpleNamespace(monotonic=lambda: screen.now))
    return screen


def test_steps_are_shown_once_a_second(screen: Screen) -> None:
    curve = LiveCurve("mine", max_steps=1000)
    curve.start(0)
    for step in range(1, 401):
        screen.now = step / 100  # four seconds
        curve.scalars(step, {"train/loss": 3.0})
        curve.progress(step, 3.0)
    assert len(screen.shown) == 1 + 4
    assert "mine: step 400 of 1,000" in screen.shown[-1]
    assert "00:04, 00:06 left" in screen.shown[-1]
    assert "training loss 3.000" in screen.shown[-1]


def test_a_run_that_is_finished_shows_nothing(screen: Screen) -> None:
    curve = LiveCurve("mine", max_steps=5)
    curve.start(5)
    curve.close()
    assert screen.shown == []


def test_an_evaluation_and_the_end_are_shown_at_once(screen: Screen) -> None:
    curve = LiveCurve("mine", max_steps=2)
    curve.start(0)
    curve.progress(1, None)
    curve.scalars(1, {"mine/number": 7.0})  # of a callback: no loss
    assert len(screen.shown) == 1
    curve.scalars(1, {"val/loss": 1.25, "val/bits_per_char": 1.8})
    curve.sample(1, "<b>sample</b>\nof two lines")
    assert '<polyline points=""' in screen.shown[-1]
    assert "validation loss 1.250" in screen.shown[-1]
    assert "a sample at step 1:\n&lt;b&gt;sample&lt;/b&gt;\nof two lines" in screen.shown[-1]
    curve.progress(2, None)
    curve.close()
    assert "step 2 of 2" in screen.shown[-1]
    assert "left" not in screen.shown[-1]


def test_a_resumed_run_estimates_from_its_own_steps(screen: Screen) -> None:
    curve = LiveCurve("mine", max_steps=200)
    curve.start(100)
    screen.now = 10.0
    curve.progress(150, None)
    assert "00:10, 00:10 left" in screen.shown[-1]
