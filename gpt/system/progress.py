"""Progress messages for the user; the caller decides where they go."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

from tqdm import tqdm

Report = Callable[[str], None]
"""Receives one line for the user."""
SILENCE, AGAIN = 2.0, 10.0
"""Seconds of work until a line says what takes so long, and between the lines after it."""


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
def announced(
    report: Report, line: str | Callable[[], str], seconds: float | None = None, again: float = AGAIN
) -> Iterator[None]:
    """Report `line`, or what it returns, if the work inside this context takes longer than `seconds` (`SILENCE`).

    Then say it every `again` seconds, with the time so far.
    """
    ended, start = Event(), time.monotonic()

    def tell() -> None:
        wait, is_told = SILENCE if seconds is None else seconds, False
        while not ended.wait(wait):
            said = time.monotonic() - start
            report((line if isinstance(line, str) else line()) + (f" ({said:.0f} s so far)" if is_told else ""))
            wait, is_told = again, True

    thread = Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()


@contextmanager
def counted(report: Report, what: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Show how far the work inside this context is, by a bar or in lines, if it takes longer than two seconds.

    Yields:
        A function to call with how many more of `total` are done.
    """
    done = 0
    with tqdm(total=total, desc=what, unit=f" {unit}", unit_scale=True, disable=None, delay=2, leave=False) as bar:

        def advance(count: int) -> None:
            nonlocal done
            done += count
            bar.update(count)

        with announced(report if bar.disable else silent, lambda: f"{what}: {done:,} of {total:,} {unit}"):
            yield advance
