import sys
import time

EVERY = 20.0
"""Seconds between two lines about a drill that runs."""


class Tally:
    """Counts what a drill did, prints that once in a while, and keeps what failed.

    Args:
        names: figures in the order in which they are shown, all 0 at first.
    """

    def __init__(self, *names: str) -> None:
        self.figures = dict.fromkeys(names, 0)
        self.failures: list[str] = []
        self._begin = self._printed = time.monotonic()

    def count(self, name: str, number: int = 1) -> None:
        """Add to a figure, which has to be one of those announced."""
        self.figures[name] += number
        if (now := time.monotonic()) > self._printed + EVERY:
            print(f"after {now - self._begin:.0f} s: {self.line()}", file=sys.stderr, flush=True)
            self._printed = now

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
        return ", ".join(f"{value:,} {name}" for name, value in self.figures.items())
