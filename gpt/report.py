"""How a part of the package speaks to the user without knowing where the words go."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

Report = Callable[[str], None]
"""Takes one line for the user."""


def silent(line: str) -> None:
    """Say nothing."""


@contextmanager
def announced(report: Report, line: str, seconds: float = 2.0) -> Iterator[None]:
    """Report what is being done if it takes longer than some seconds: a short wait needs no words."""
    timer = Timer(seconds, report, [line])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
