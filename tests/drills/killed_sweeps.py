"""Sweeps: killed between their trials and inside them, and continued."""

import json
import shutil
from pathlib import Path
from typing import Any

from drills.forks import Death, Ending, run_forked
from drills.frame import Tally
from drills.killed_commands import make_old
from drills.leftovers import differing, everything
from drills.tiny_run import hidden_files
from gpt.cli import sweep
from gpt.errors import GPTError
from gpt.training.sweeps import sweep as sweeps
from gpt.training.sweeps.outcomes import RESULTS
from tiny import CORPUS, TINY
from training.sweeps.in_process import InProcess

GRID = "optim: {learning_rate: [1e-3, 1e-2]}\n"
CHANGES = ("run.threads=1", "run.kernels=torch", "train.max_steps=4", "train.eval_interval=2", "train.sample_tokens=0")
FOLDER = Path("runs/tiny-grid")


def make_folder(folder: Path) -> Path:
    """Return a folder with tiny.yaml, grid.yaml and corpus.txt."""
    folder.mkdir()
    (folder / "tiny.yaml").write_text(TINY, encoding="utf-8")
    (folder / "grid.yaml").write_text(GRID, encoding="utf-8")
    (folder / "corpus.txt").write_text(CORPUS * 30, encoding="utf-8")
    return folder


def sweep_once(*changes: str) -> int:
    """Run the sweep, or continue it, in a child; one kill ends it and its trial."""
    sweeps.TrialProcess = InProcess  # type: ignore[assignment, misc]
    sweeps.POLL_SECONDS = 0
    return sweep.main(["--config", "tiny.yaml", "grid.yaml", *CHANGES, *changes])


def run_sweep(folder: Path, death: Death = Death()) -> Ending:  # noqa: B008
    """Start or continue the sweep in a folder."""
    return run_forked(sweep_once, folder, death)


def outcomes(sweep: Path) -> dict[str, Any]:
    """Return all that a sweep and its trials leave, without what depends on the clock."""
    rows = json.loads((sweep / RESULTS).read_text())["trials"]
    table = (sweep / "results.csv").read_text().splitlines()
    found: dict[str, Any] = {"rows": [{**row, "seconds": 0} for row in rows], "lines of the table": len(table)}
    for row in rows:
        found |= {f"{row['name']}/{key}": value for key, value in everything(sweep / row["name"]).items()}
    return found


def wrong_sweep(folder: Path, ending: Ending, expected: dict[str, Any]) -> str:
    """Return what is wrong with a sweep that has ended; empty if nothing is."""
    if ending.code != 0 or "Traceback" in ending.output:
        return f"exit code {ending.code}: {ending.output[-500:]}"
    try:
        differences = differing(outcomes(folder / FOLDER), expected)
    except (AssertionError, GPTError, OSError, ValueError) as error:
        return repr(error)
    return ", ".join([*differences, *hidden_files(folder / "runs")])


def kill_sweeps(folder: Path, full: bool, tally: Tally) -> None:
    """Kill a sweep before changes on disk, its own and those of its trials, and run it again."""
    folder.mkdir()
    undisturbed = make_folder(folder / "undisturbed")
    ending = run_sweep(undisturbed)
    assert ending.code == 0, ending.output
    expected = outcomes(undisturbed / FOLDER)
    for number in range(1, ending.changes + 1, 5) if full else (ending.changes * 3 // 4,):
        place = make_folder(folder / "place")
        death = Death(changes=number)
        tally.count("kills", run_sweep(place, death).was_killed)
        make_old(place)
        wrong = wrong_sweep(place, run_sweep(place), expected)
        tally.check(not wrong, f"sweep, {death}: {wrong}")
        tally.count("sweeps finished", not wrong)
        tally.count("lost", bool(wrong))
        shutil.rmtree(place)
