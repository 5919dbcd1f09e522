"""Progress messages for the user; the caller decides where they go."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

from tqdm import tqdm

Report = Callable[[str], None]
"""Receives one line for the user."""
SILENCE = 2.0
"""Seconds of work until a line says what takes so long."""
AGAIN = 10.0
"""Seconds between the lines after the first one."""


def silent(line: str) -> None:
    """Ignore a line; a `Report` for callers that want none."""


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook, which can show pictures and HTML."""
    # IPython is not imported, which would take half a second: a notebook has done that already.
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def print_line(line: str) -> None:
    """Print one line on standard error, above a progress bar if there is one.

    In a notebook the line goes to standard output, since standard error is shown in red there.
    """
    file = sys.stdout if in_notebook() else sys.stderr
    # A closed terminal must not end a run.
    with suppress(OSError):
        tqdm.write(line, file=file)
        file.flush()


@contextmanager
def announced(
    report: Report,
    line: str | Callable[[], str],
    seconds: float | None = None,
    again: float = AGAIN,
) -> Iterator[None]:
    """Report a line if the work inside this context takes long, and then again and again.

    Args:
        line: what is reported, or a function that returns it.
        seconds: how long the work may take before the first report; None: `SILENCE`.
        again: seconds between further reports, which also state the time so far.
    """
    # `SILENCE` is read here and is no default, so that it can be replaced for a whole process.
    first_wait = SILENCE if seconds is None else seconds
    ended = Event()
    # A daemon, so that a process that ends meanwhile does not wait for this thread.
    thread = Thread(
        target=_report_until, args=(ended, report, line, first_wait, again), daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()


def _report_until(
    ended: Event, report: Report, line: str | Callable[[], str], first_wait: float, again: float
) -> None:
    """Report a line after `first_wait` seconds, then every `again` seconds, until work ended."""
    start = time.monotonic()
    if ended.wait(first_wait):
        return
    report(line if isinstance(line, str) else line())
    while not ended.wait(again):
        text = line if isinstance(line, str) else line()
        report(f"{text} ({time.monotonic() - start:.0f} s so far)")


@contextmanager
def counted(report: Report, what: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Show the progress of the work inside this context, if it takes longer than two seconds.

    A terminal shows a bar; otherwise lines are reported.

    Yields:
        A function to call with how many more of `total` are done.
    """
    # With disable=None, tqdm shows no bar unless standard error is a terminal. A disabled bar does
    # not count, so that the lines need a count of their own.
    bar = tqdm(
        total=total,
        desc=what,
        unit=f" {unit}",
        unit_scale=True,
        disable=None,
        delay=2,
        leave=False,
    )
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        bar.update(count)

    def line() -> str:
        return f"{what}: {done:,} of {total:,} {unit}"

    with bar, announced(report if bar.disable else silent, line):
        yield advance
