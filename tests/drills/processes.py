"""Run drills as processes of their own, two at a time, of which each may be broken; those that measure run alone."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from drills.breaks import BREAKS
from drills.frame import FOLDER, PROGRESS, ROOT, Tally, load
from gpt.cli.command import SPINS
from patience import PATIENCE

SILENCE = 3 * PATIENCE
"""Seconds after which a drill that reports no progress hangs; how long all of it takes is not limited."""
EVERY = 20.0
"""Seconds between two lines about a drill that runs."""


@dataclass(frozen=True)
class Outcome:
    """What a drill found: its figures as a line, and its failures; `crashed` if it did not end by itself."""

    line: str
    failures: list[str]
    crashed: bool = False


@dataclass(frozen=True)
class Task:
    """A drill that is to be run.

    Attributes:
        name: of the drill; several, with commas between their names, share one process and what it imports.
        full: at full scale, otherwise at the small one.
        defect: number of the drill's break that its process has; None: none.
    """

    name: str
    full: bool
    defect: int | None = None

    def run(self, stopped: threading.Event | None = None) -> tuple[Outcome, float]:
        """Run it in a temporary folder, which is removed with every process that it started.

        Args:
            stopped: ends it early when it is set.

        Returns:
            What came of it, and the seconds that it took.
        """
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="drill-", ignore_cleanup_errors=True) as folder:
            with Path(folder, "output.txt").open("w") as output:
                process = subprocess.Popen(
                    [*self._command, folder],
                    cwd=ROOT,
                    env=_environment(folder),
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            try:
                problem = self._follow(process, Path(folder, PROGRESS), stopped or threading.Event())
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                _kill_marked(folder)
            result = Path(folder, "result.json")
            if problem or not result.is_file():
                problem = problem or f"ended with exit code {process.returncode}"
                outcome = Outcome("", [f"{problem}: {Path(folder, 'output.txt').read_text()[-2000:]}"], crashed=True)
            else:
                outcome = Outcome(**json.loads(result.read_text(encoding="utf-8")))
        return outcome, time.monotonic() - begin

    @property
    def _command(self) -> list[str]:
        options = [] if self.full else ["--quick"]
        options += [] if self.defect is None else ["--defect", str(self.defect)]
        return [sys.executable, "-m", "drills", "--drills", self.name, *options, "--inside"]

    def _follow(self, process: "subprocess.Popen[bytes]", progress: Path, stopped: threading.Event) -> str:
        """Wait for the end, and print the figures once in a while; return what is wrong, empty if nothing is."""
        begin, figures, changed, printed = time.monotonic(), "", time.monotonic(), time.monotonic()
        while process.poll() is None:
            stopped.wait(0.2)
            now, found = time.monotonic(), progress.read_text(encoding="utf-8") if progress.exists() else ""
            if found != figures:
                figures, changed = found, now
                if now > printed + EVERY:
                    printed = now
                    print(f"{self.name} after {now - begin:.0f} s: {figures}", file=sys.stderr, flush=True)
            if stopped.is_set() or now > changed + SILENCE:
                return f"no progress in {now - changed:.0f} s, at {figures or 'its start'}"
        return ""


def _environment(folder: str) -> dict[str, str]:
    paths = (str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")]))
    return {"GOMP_SPINCOUNT": SPINS, **os.environ, "PYTHONPATH": os.pathsep.join(paths), FOLDER: folder}


def _kill_marked(folder: str) -> None:
    """Kill the processes of a drill that have a session of their own, where Linux lists them."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"{FOLDER}={folder}\0".encode() in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)


def run_inside(folder: Path, names: Sequence[str], full: bool, defect: int | None) -> int:
    """Run drills in this process; their outcome is written into the folder."""
    if defect is not None:
        BREAKS[names[0]][defect].apply()
    tallies: list[Tally] = []
    for name in names:
        (folder / name).mkdir()
        tallies.append(load(name).run(folder / name, full))
    failures = [failure for tally in tallies for failure in tally.failures]
    outcome = {"line": "; ".join(tally.line() for tally in tallies), "failures": failures}
    (folder / "result.json").write_text(json.dumps(outcome), encoding="utf-8")
    return 1 if failures else 0


def run_all(tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome, float]]:
    """Run drills, and yield what came of each when it is done; those that measure are the last, one at a time."""
    beside = [task for task in tasks if not load(task.name).alone]
    for some, at_once in ((beside, 2), ([task for task in tasks if task not in beside], 1)):
        stopped, pool = threading.Event(), ThreadPoolExecutor(min(at_once, os.cpu_count() or 1))
        futures = {pool.submit(task.run, stopped): task for task in some}
        try:
            for future in as_completed(futures):
                yield futures[future], *future.result()
        finally:  # also after Ctrl-C
            stopped.set()
            pool.shutdown(cancel_futures=True)
