"""Progress messages for the user; the caller decides where they go."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Timer

from tqdm import tqdm

Report = Callable[[str], None]
"""Receives one line for the user."""


def silent(line: str) -> None:
    """Ignore a line."""


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook, which shows pictures and HTML below a cell."""
    ipython = sys.modules.get("IPython")  # an import would take half a second
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def print_line(line: str) -> None:
    """Print one line on standard error, above a progress bar if there is one; in a notebook, on standard output.

    A notebook shows standard error in red, as a mistake.
    """
    file = sys.stdout if in_notebook() else sys.stderr
    with suppress(OSError):  # a closed terminal must not end a run
        tqdm.write(line, file=file)
        file.flush()


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
