"""SIGTERM, SIGINT and SIGHUP at random moments of a training, and in all else that takes long."""

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

from drills.forks import Death, Ending, finish, prepare_to_fork, run_forked, start_forked
from drills.frame import Drill, Tally
from drills.interrupted import converse, try_case
from drills.interrupted_cases import SESSION, chosen, make_original
from drills.killed_commands import INCOMPLETE, contents, undisturbed
from drills.leftovers import differing, everything, hidden_files
from drills.terminals import adopt_orphans
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
        return f"{number.name}, exit code {ending.code}: Traceback{ending.output.partition('Traceback')[2][:1500]}"
    if ending.code in (0, -number):
        return ""  # done already, or not listening yet
    if ending.code != 128 + number:
        return f"exit code {ending.code} after {number.name}: {ending.output[-500:]}"
    run = RunFolder(folder / RUN)
    newest = run.pointed("last")
    lines = run.metrics.read_text().splitlines() if run.metrics.exists() else []
    rows = [json.loads(line) for line in lines]
    trained = max((row["step"] for row in rows if "train/loss" in row), default=0)
    is_saved = newest is not None and int(newest.name.removeprefix("step-")) == trained
    if not is_saved and (trained > 0 or "stopped by" in ending.output):
        return f"step {trained} was trained, {newest} is saved"
    return ""


def interrupt_trainings(folder: Path, full: bool, tally: Tally) -> None:
    """Interrupt runs again and again, and compare each in the end with one that was never interrupted."""
    folder.mkdir(exist_ok=True)
    undisturbed = make_folder(folder / "undisturbed")
    assert finish(start_forked(resume, undisturbed)).code == 0
    expected = everything(undisturbed / RUN)
    chance = random.Random(0)
    for number in range(20 if full else 1):
        place = make_folder(folder / f"run{number}")
        for signum in SIGNALS:
            ending = interrupt(place, signum, chance.uniform(0, 0.4))
            wrong = problem(place, signum, ending)
            tally.count("signals")
            tally.count("trainings stopped and saved", ending.code == 128 + signum and "stopped by" in ending.output)
            tally.count("lost", bool(wrong))
            tally.check(not wrong, wrong)
        ending = finish(start_forked(resume, place))
        differences = differing(everything(place / RUN), expected) if ending.code == 0 else [ending.output[-500:]]
        tally.count("trainings finished", not differences)
        tally.count("lost", bool(differences))
        tally.check(not differences, f"{differences[:5]}")
        shutil.rmtree(place)


def interrupt_writing(folder: Path, full: bool, tally: Tally) -> None:
    """Interrupt commands before each change on disk (or a few): nothing half-written stays, and they run again."""
    for command, changes, expected in undisturbed(folder):
        for change in range(1, changes + 1) if full else (changes // 2 + 1,):
            number = SIGNALS[change % len(SIGNALS)]
            output = folder / command.output
            shutil.rmtree(output) if output.is_dir() else output.unlink()
            ending = run_forked(command.run, folder, Death(changes=change, number=number))
            wrong = [f"exit code {ending.code}: {ending.output[-300:]}"] if ending.code != 128 + number else []
            wrong += ["traceback"] if "Traceback" in ending.output else []
            wrong += [f"left {name}" for name in hidden_files(folder)]
            again = run_forked(command.run, folder) if not output.exists() or command.output in INCOMPLETE else None
            wrong += ["not repeated"] if again is not None and again.code != 0 else []
            wrong += ["something else is written"] if contents(output) != expected else []
            _note(f"{command.name}, {number.name} before change {change}", wrong, tally)


def interrupt_commands(folder: Path, full: bool, tally: Tally) -> None:
    """Interrupt commands on terminals while they compute, wait, compile, start, drain, or have started others."""
    adopt_orphans()
    folder.mkdir()
    original = make_original(folder / "original")
    _note("Ctrl-C in a session", converse(SESSION, original), tally)
    for case, numbers, ways in chosen(full):
        for what, wrong in try_case(case, folder, original, numbers, ways):
            _note(what, wrong, tally)


def _note(what: str, wrong: list[str], tally: Tally) -> None:
    tally.count("signals")
    tally.count("commands stopped", not wrong)
    tally.count("lost", bool(wrong))
    tally.check(not wrong, f"{what}: {'; '.join(wrong)}")


def run(folder: Path, full: bool) -> Tally:
    """Interrupt trainings, commands that write, and all that takes long."""
    tally = Tally("signals", "trainings stopped and saved", "trainings finished", "commands stopped", "lost")
    prepare_to_fork()
    interrupt_trainings(folder / "trainings", full, tally)
    interrupt_writing(folder / "writing", full, tally)
    interrupt_commands(folder / "commands", full, tally)
    return tally


DRILL = Drill(
    "SIGTERM, SIGINT and SIGHUP at any moment of a training save it within a step, and end every other command, with "
    "exit codes 143, 130 and 129; a later one ends it at once. No process, temporary file or changed terminal is left, "
    "and a run ends as one that was never interrupted, bit for bit.",
    run,
)
