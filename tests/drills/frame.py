"""What a drill is: an attack on a promise, and its figures."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import gpt

ROOT = Path(gpt.__file__).resolve().parents[1]
"""The checkout that is attacked."""
FOLDER = "GPT_DRILL_FOLDER"
"""Variable of the environment of a drill's process and of those that it starts: the drill's folder."""
COUNT = "GPT_DRILL_COUNT"
"""Another variable: how often a drill that can be asked for that repeats its attack."""
PROGRESS = "progress.txt"
"""File in that folder: the figures so far."""
NAMES = ("kill", "ranks", "signals", "disk", "hostile", "fuzz", "soak")
"""The modules of this folder with a `DRILL`, in the order of the page."""


class Tally:
    """Counts what a drill did, writes that into its folder once a second, and keeps what failed.

    Args:
        names: figures in the order in which they are shown, all 0 at first.
    """

    def __init__(self, *names: str) -> None:
        self.figures: dict[str, int | str] = dict.fromkeys(names, 0)
        self.failures: list[str] = []
        self._written = 0.0

    def count(self, name: str, number: int = 1) -> None:
        """Add to a figure, which has to be one of those announced."""
        before = self.figures[name]
        assert isinstance(before, int)
        self.figures[name] = before + number
        if (folder := os.environ.get(FOLDER)) and time.monotonic() > self._written + 1:
            Path(folder, PROGRESS).write_text(self.line(), encoding="utf-8")
            self._written = time.monotonic()

    def check(self, holds: bool, failure: str) -> bool:
        """Note a failure unless something holds; return whether it does."""
        if not holds:
            self.failures.append(failure)
        return holds

    def outcome(self, done: str, wrong: str, what: str) -> None:
        """Count an attack as `done`, or as lost with what is `wrong`; an empty text is nothing wrong."""
        self.count("lost" if wrong else done)
        self.check(not wrong, f"{what}: {wrong}")

    def line(self) -> str:
        shown = (f"{value:,}" if isinstance(value, int) else value for value in self.figures.values())
        return ", ".join(f"{value} {name}" for value, name in zip(shown, self.figures, strict=True))


def repeats(full: bool, at_full: int, at_small: int) -> int:
    """Return how often an attack is repeated: as `--count` asks, else as the scale does."""
    return int(os.environ.get(COUNT) or (at_full if full else at_small))


@dataclass(frozen=True)
class Drill:
    """An attack.

    Attributes:
        promise: what holds if no failure is found, as a sentence for the page.
        run: attacks in an empty folder; the second argument is False at the small scale of tests and self-tests, at
            which it has to find every break within seconds. Failures are returned; an exception is a defect of the
            drill.
        alone: it measures, so no other drill may run beside it.
    """

    promise: str
    run: Callable[[Path, bool], Tally]
    alone: bool = False


def load(name: str) -> Drill:
    drill = import_module(f"drills.{name}").DRILL
    assert isinstance(drill, Drill)
    return drill
