"""SIGTERM, SIGINT and SIGHUP at random moments of a training: starting, training, evaluating, sampling, saving."""

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

from drills.forks import Ending, finish, prepare_to_fork, start_forked
from drills.frame import Break, Drill, Tally
from drills.leftovers import differing, everything
from gpt.checkpoint import RunFolder
from gpt.cli import train
from tiny import CORPUS, TINY

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
CHANGES = ("run.threads=1", "run.kernels=torch", "train.max_steps=60", "train.eval_interval=10", "model.dropout=0.1")
RUN = Path("runs/tiny")


def make_folder(folder: Path) -> Path:
    folder.mkdir()
    (folder / "tiny.yaml").write_text(TINY, encoding="utf-8")
    (folder / "corpus.txt").write_text(CORPUS * 30, encoding="utf-8")
    return folder


def resume() -> int:
    return train.main(["--config", "tiny.yaml", "--resume", "auto", *CHANGES])


def interrupt(folder: Path, number: signal.Signals, seconds: float) -> Ending:
    """Start or continue the run, and send it a signal after so long."""
    child = start_forked(resume, folder)
    time.sleep(seconds)
    os.kill(child.pid, number)
    return finish(child)


def problem(folder: Path, number: signal.Signals, ending: Ending) -> str:
    """Return what is wrong after a signal; empty if nothing is."""
    if "Traceback" in ending.output:
        return ending.output[-500:]
    if ending.code in (0, -number) or (ending.code == 130 and "stopped by" not in ending.output):
        return ""  # done already, or not listening yet
    if ending.code != 128 + number:
        return f"exit code {ending.code} after {number.name}: {ending.output[-500:]}"
    run = RunFolder(folder / RUN)
    newest = run.pointed("last")
    lines = run.metrics.read_text().splitlines() if run.metrics.exists() else []
    rows = [json.loads(line) for line in lines]
    trained = max((row["step"] for row in rows if "train/loss" in row), default=0)
    if newest is None or int(newest.name.removeprefix("step-")) != trained:
        return f"step {trained} was trained, {newest} is saved"
    return ""


def run(folder: Path, full: bool) -> Tally:
    """Interrupt runs again and again, and compare each in the end with one that was never interrupted."""
    tally = Tally("signals", "stopped and saved", "runs finished", "lost")
    prepare_to_fork()
    folder.mkdir(exist_ok=True)
    undisturbed = make_folder(folder / "undisturbed")
    assert finish(start_forked(resume, undisturbed)).code == 0
    expected = everything(undisturbed / RUN)
    chance = random.Random(0)
    for number in range(20 if full else 2):
        place = make_folder(folder / f"run{number}")
        for signum in SIGNALS:
            ending = interrupt(place, signum, chance.uniform(0, 0.4))
            wrong = problem(place, signum, ending)
            tally.count("signals")
            tally.count("stopped and saved", ending.code == 128 + signum and "stopped by" in ending.output)
            tally.count("lost", bool(wrong))
            tally.check(not wrong, wrong)
        ending = finish(start_forked(resume, place))
        differences = differing(everything(place / RUN), expected) if ending.code == 0 else [ending.output[-500:]]
        tally.count("runs finished", not differences)
        tally.count("lost", bool(differences))
        tally.check(not differences, f"{differences[:5]}")
        shutil.rmtree(place)
    return tally


BREAKS = (
    Break(
        "a run that was stopped is taken for a failed one",
        "gpt/cli/train.py",
        "        return stopped.exit_code\n",
        "        return 1\n",
    ),
)
DRILL = Drill(
    "SIGTERM, SIGINT and SIGHUP at any moment of a training save it within a step, with exit codes 143, 130 and 129; "
    "it ends as one that was never interrupted, bit for bit.",
    run,
    BREAKS,
)
