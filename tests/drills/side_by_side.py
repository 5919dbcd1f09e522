"""Drills at the same time: two of them, except those that measure."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from drills.frame import load
from drills.processes import Outcome, run_process

AT_ONCE = 2
"""More would wait for each other on two cores."""
EVERY = 20.0
"""Seconds between two lines about a drill that runs."""


class Report:
    """Prints the figures of a drill that runs, on standard error and once in a while."""

    def __init__(self, name: str) -> None:
        self._name, self._begin = name, time.monotonic()
        self._next = self._begin + EVERY

    def __call__(self, figures: str) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + EVERY
            print(f"{self._name} after {now - self._begin:.0f} s: {figures}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Task:
    """A drill that is to be run: at full or small scale, and with one of its breaks if there is a defect."""

    name: str
    full: bool
    defect: int | None = None

    def run(self, stop: Callable[[], bool]) -> tuple[Outcome, float]:
        """Return what came of it, and the seconds that it took."""
        begin = time.monotonic()
        outcome = run_process(self.name, self.full, self.defect, stop, Report(self.name))
        return outcome, time.monotonic() - begin


def run_all(tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome, float]]:
    """Run drills, and yield what came of each when it is done; drills that measure are the last, one at a time."""
    together = [task for task in tasks if not load(task.name).alone]
    yield from _run_some(together, min(AT_ONCE, os.cpu_count() or 1))
    yield from _run_some([task for task in tasks if task not in together], 1)


def _run_some(tasks: Sequence[Task], at_once: int) -> Iterator[tuple[Task, Outcome, float]]:
    stopped = threading.Event()
    pool = ThreadPoolExecutor(at_once)
    futures = {pool.submit(task.run, stopped.is_set): task for task in tasks}
    try:
        for future in as_completed(futures):
            yield futures[future], *future.result()
    finally:  # also after Ctrl-C
        stopped.set()
        pool.shutdown(cancel_futures=True)
