"""SIGTERM, SIGINT and SIGHUP at random moments of a training, and in all else that takes long."""

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from drills.forks import Death, Ending, prepare_to_fork
from drills.interrupted import converse, try_case, unsaved
from drills.interrupted_cases import ALL, SESSION, chosen, make_original
from drills.kill import Subject, attack, resume
from drills.killed_commands import stop, undisturbed
from drills.tally import Tally
from drills.terminals import adopt_orphans

CHANGES = ("run.threads=1", "run.kernels=torch", "train.max_steps=60", "train.eval_interval=10", "model.dropout=0.1")


def moments(full: bool, changes: int) -> Iterator[Death]:
    chance = random.Random(0)
    for _ in range(20 if full else 1):
        yield from (Death(seconds=chance.uniform(0, 0.4), number=number) for number in ALL)


def was_stopped(place: Path, death: Death, ending: Ending, tally: Tally) -> str:
    """Count a signal, and return what is wrong with how a training ended and with what it saved."""
    tally.count("signals")
    has_begun = "stopped by" in ending.output
    tally.count("trainings stopped and saved", ending.code == 128 + death.number and has_begun)
    if ending.code in (0, -death.number) and "Traceback" not in ending.output:
        return ""  # done already, or not listening yet
    if ending.code != 128 + death.number or "Traceback" in ending.output:
        return f"exit code {ending.code} after {death.number.name}: {ending.output[-1500:]}"
    return ", ".join(unsaved(place / "runs" / "tiny", has_begun))


TRAINING = Subject("trainings finished", partial(resume, *CHANGES), moments, in_a_row=3, look=was_stopped)


def interrupt_writing(folder: Path, full: bool, tally: Tally) -> None:
    """Interrupt commands before each change on disk (or a few): nothing half-written stays, and they run again."""
    for command, changes, expected in undisturbed(folder):
        for change in range(1, changes + 1) if full else (changes // 2 + 1,):
            number = ALL[change % len(ALL)]
            _, wrong = stop(command, folder, Death(changes=change, number=number), expected)
            _note(f"{command.name}, {number.name} before change {change}", wrong, tally)


def interrupt_commands(folder: Path, full: bool, tally: Tally) -> None:
    """Interrupt commands on terminals while they compute, wait, compile, start, serve, or have started others."""
    adopt_orphans()
    folder.mkdir()
    original = make_original(folder / "original")
    _note("Ctrl-C in a session", "; ".join(converse(SESSION, original)), tally)
    for case, numbers, ways in chosen(full):
        for what, wrong in try_case(case, folder, original, numbers, ways):
            _note(what, "; ".join(wrong), tally)


def _note(what: str, wrong: str, tally: Tally) -> None:
    tally.count("signals")
    tally.outcome("commands stopped", wrong, what)


def run(folder: Path, full: bool) -> Tally:
    tally = Tally("signals", "trainings stopped and saved", "trainings finished", "commands stopped", "lost")
    prepare_to_fork()
    attack(TRAINING, folder / "trainings", full, tally)
    interrupt_writing(folder / "writing", full, tally)
    interrupt_commands(folder / "commands", full, tally)
    return tally
