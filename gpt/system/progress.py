"""Progress messages for the user; the caller decides where they go."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

from tqdm import tqdm

Report = Callable[[str], None]
"""Receives one line for the user."""
ANNOUNCE_AFTER = 2.0
"""Seconds of work until a line says what takes so long, or a progress bar appears."""
ANNOUNCE_EVERY = 10.0
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
def announce_if_slow(
    report: Report,
    line: str | Callable[[], str],
    seconds: float | None = None,
    interval: float = ANNOUNCE_EVERY,
) -> Iterator[None]:
    """Report a line if the work inside this context takes long, and repeat it at intervals.

    Args:
        line: what is reported, or a function that returns it.
        seconds: how long the work may take before the first report; None: `ANNOUNCE_AFTER`.
        interval: seconds between further reports, which also state the time so far.
    """
    # `ANNOUNCE_AFTER` is read here and is no default of the parameter, so that a test can replace
    # it for a whole process.
    first_wait = ANNOUNCE_AFTER if seconds is None else seconds
    ended = Event()
    # A daemon, so that a process that ends meanwhile does not wait for this thread.
    thread = Thread(
        target=_report_until, args=(ended, report, line, first_wait, interval), daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()


def _report_until(
    ended: Event, report: Report, line: str | Callable[[], str], first_wait: float, interval: float
) -> None:
    """Report a line after `first_wait` seconds, then every `interval` seconds, until work ended."""
    start = time.monotonic()
    # `wait` returns True as soon as the work has ended, and False when the time is up.
    if ended.wait(first_wait):
        return
    report(line if isinstance(line, str) else line())
    while not ended.wait(interval):
        text = line if isinstance(line, str) else line()
        report(f"{text} ({time.monotonic() - start:.0f} s so far)")


class _Progress:
    """How much of some work is done: shown by a bar on a terminal, and as a line elsewhere."""

    def __init__(self, title: str, total: int, unit: str) -> None:
        self._title = title
        self._total = total
        self._unit = unit
        # A disabled bar does not count, so that the lines need a count of their own.
        self._done = 0
        self.bar = tqdm(
            total=total,
            desc=title,
            unit=f" {unit}",
            unit_scale=True,
            disable=None,  # tqdm shows a bar only if standard error is a terminal
            delay=ANNOUNCE_AFTER,
            leave=False,
        )

    def advance(self, count: int) -> None:
        """Add what has been done since the last call."""
        self._done += count
        self.bar.update(count)

    def line(self) -> str:
        return f"{self._title}: {self._done:,} of {self._total:,} {self._unit}"


@contextmanager
def progress_bar(
    report: Report, title: str, total: int, unit: str
) -> Iterator[Callable[[int], None]]:
    """Show the progress of the work inside this context, if it takes longer than two seconds.

    A terminal shows a bar; otherwise lines are reported.

    Yields:
        A function to call with how many more of `total` are done.
    """
    progress = _Progress(title, total, unit)
    with progress.bar as bar:
        # Lines would repeat what the bar on a terminal shows.
        report_line = report if bar.disable else silent
        with announce_if_slow(report_line, progress.line):
            yield progress.advance
