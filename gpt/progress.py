"""Progress messages for the user; the caller decides where they go."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

Report = Callable[[str], None]
"""Receives one line for the user."""


def silent(line: str) -> None:
    """Ignore a line."""


@contextmanager
def announced(report: Report, line: str, seconds: float = 2.0) -> Iterator[None]:
    """Report `line` if the work inside this context takes longer than `seconds`."""
    timer = Timer(seconds, report, [line])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
