"""Run drills as processes of their own, two at a time, of which each may be broken; those that measure run alone."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from drills.breaks import BREAKS
from drills.frame import FOLDER, PROGRESS, ROOT, load
from patience import PATIENCE

SILENCE = 3 * PATIENCE
"""Seconds after which a drill that reports no progress hangs; how long all of it takes is not limited."""
EVERY = 20.0
"""Seconds between two lines about a drill that runs."""


@dataclass(frozen=True)
class Task:
    """A drill that is to be run, at full or at small scale, by a process that has one of the drill's breaks or none."""

    name: str
    full: bool
    defect: int | None = None


@dataclass(frozen=True)
class Outcome:
    """What a drill found: its figures as a line, and its failures; `crashed` if it did not end by itself."""

    line: str
    failures: list[str]
    crashed: bool = False


class Running:
    """The process of a drill, in a temporary folder.

    Attributes:
        task: the drill.
        seconds: how long it has been running.
    """

    def __init__(self, task: Task) -> None:
        self.task, self._folder = task, Path(tempfile.mkdtemp(prefix="drill-"))
        self._begin = self._printed = time.time()
        command = [sys.executable, "-m", "drills", "--drills", task.name, *([] if task.full else ["--quick"])]
        command += [] if task.defect is None else ["--defect", str(task.defect)]
        paths = (str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")]))
        variables = {"PYTHONPATH": os.pathsep.join(paths), FOLDER: str(self._folder)}
        with (self._folder / "output.txt").open("w") as output:
            self._process = subprocess.Popen(
                [*command, "--inside", str(self._folder)],
                cwd=ROOT,
                env={**os.environ, **variables},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def seconds(self) -> float:
        return time.time() - self._begin

    def is_done(self) -> bool:
        """Return whether it has ended, or hangs; print its figures once in a while."""
        progress, now = self._folder / PROGRESS, time.time()
        changed = progress.stat().st_mtime if progress.exists() else self._begin
        if changed > self._printed + EVERY:
            self._printed = now
            print(f"{self.task.name} after {self.seconds:.0f} s: {progress.read_text()}", file=sys.stderr, flush=True)
        return self._process.poll() is not None or now > changed + SILENCE

    def end(self) -> Outcome:
        """Kill what is left of it, remove its folder, and return what came of it."""
        code = self._process.poll()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for path in Path("/proc").glob("[0-9]*/environ"):  # some of its processes have sessions of their own
            with suppress(OSError):
                if f"{FOLDER}={self._folder}\0".encode() in path.read_bytes():
                    os.kill(int(path.parent.name), signal.SIGKILL)
        result, output = self._folder / "result.json", (self._folder / "output.txt").read_text(errors="replace")
        problem = f"no progress in {SILENCE:.0f} s" if code is None else f"ended with exit code {code}"
        outcome = Outcome("", [f"{problem}: {output[-2000:]}"], crashed=True)
        if code is not None and result.is_file():
            outcome = Outcome(**json.loads(result.read_text(encoding="utf-8")))
        shutil.rmtree(self._folder, ignore_errors=True)
        return outcome


def run_inside(folder: Path, task: Task) -> int:
    """Run a drill in this process; its outcome is written into the folder."""
    if task.defect is not None:
        BREAKS[task.name][task.defect].apply()
    (folder / task.name).mkdir()
    tally = load(task.name).run(folder / task.name, task.full)
    outcome = {"line": tally.line(), "failures": tally.failures}
    (folder / "result.json").write_text(json.dumps(outcome), encoding="utf-8")
    return 1 if tally.failures else 0


def run_all(tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome, float]]:
    """Run drills, and yield what came of each when it is done, and its seconds; those that measure are the last."""
    waiting = sorted(tasks, key=lambda task: load(task.name).alone)
    running: list[Running] = []
    try:
        while waiting or running:
            at_once = 1 if waiting and load(waiting[0].name).alone else min(2, os.cpu_count() or 1)
            if waiting and len(running) < at_once:
                running.append(Running(waiting.pop(0)))
            time.sleep(0.1)
            for each in [one for one in running if one.is_done()]:
                running.remove(each)
                yield each.task, each.end(), each.seconds
    finally:  # also after Ctrl-C
        for each in running:
            each.end()
