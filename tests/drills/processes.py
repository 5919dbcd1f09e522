"""Run drills as processes of their own, of which one may be broken."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from drills.breaks import BREAKS
from drills.frame import FOLDER, PROGRESS, ROOT, Tally
from gpt.cli.command import SPINS
from patience import PATIENCE

SILENCE = 3 * PATIENCE
"""Seconds after which a drill that reports no progress hangs; how long all of it takes is not limited."""


@dataclass(frozen=True)
class Outcome:
    """What a drill found: its figures as a line, and its failures; `crashed` if it did not end by itself."""

    line: str
    failures: list[str]
    crashed: bool = False


def run_process(
    name: str,
    full: bool,
    defect: int | None = None,
    stop: Callable[[], bool] = lambda: False,
    report: Callable[[str], None] = lambda figures: None,
) -> Outcome:
    """Run a drill in a temporary folder, which is removed with every process that it started.

    Args:
        name: of the drill; several, with commas between their names, share one process and what it imports.
        full: at full scale, otherwise at the small one.
        defect: number of the drill's break that its process has; None: none.
        stop: returns whether to end early.
        report: called with the figures so far, whenever they have changed.
    """
    with tempfile.TemporaryDirectory(prefix="drill-", ignore_cleanup_errors=True) as folder:
        result, log, progress = (Path(folder) / name for name in ("result.json", "output.txt", PROGRESS))
        command = [sys.executable, "-m", "drills", "--inside", folder, "--drills", name, *([] if full else ["--quick"])]
        command += [] if defect is None else ["--defect", str(defect)]
        paths = (str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")]))
        environment = {"GOMP_SPINCOUNT": SPINS, **os.environ, "PYTHONPATH": os.pathsep.join(paths), FOLDER: folder}
        with log.open("w") as output:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
            )
        figures, end = "", time.monotonic() + SILENCE
        try:
            while (code := _code_within_a_moment(process)) is None:
                now = progress.read_text(encoding="utf-8") if progress.exists() else ""
                if now != figures:
                    figures, end = now, time.monotonic() + SILENCE
                    report(figures)
                if stop() or time.monotonic() > end:
                    text = f"no progress in {SILENCE:g} s, at {figures or 'its start'}: {log.read_text()[-2000:]}"
                    return Outcome("", [text], crashed=True)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            kill_marked(folder)
        if not result.is_file():
            return Outcome("", [f"ended with exit code {code}: {log.read_text()[-2000:]}"], crashed=True)
        return Outcome(**json.loads(result.read_text(encoding="utf-8")))


def _code_within_a_moment(process: "subprocess.Popen[bytes]") -> int | None:
    with suppress(subprocess.TimeoutExpired):
        return process.wait(0.2)
    return None


def kill_marked(folder: str) -> None:
    """Kill the processes of a drill that have a session of their own, where Linux lists them."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"{FOLDER}={folder}\0".encode() in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)


def run_inside(folder: Path, names: Sequence[str], full: bool, defect: int | None) -> int:
    """Run drills in this process; their outcome is written into the folder."""
    if defect is not None:
        BREAKS[names[0]][defect].apply()
    from drills.frame import load

    tallies: list[Tally] = []
    for name in names:
        workplace = folder / name
        workplace.mkdir()
        tallies.append(load(name).run(workplace, full))
    failures = [failure for tally in tallies for failure in tally.failures]
    outcome = {"line": "; ".join(tally.line() for tally in tallies), "failures": failures}
    (folder / "result.json").write_text(json.dumps(outcome), encoding="utf-8")
    return 1 if failures else 0
