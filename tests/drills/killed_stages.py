"""A teacher and its student: killed inside either run and between them, and continued."""

import importlib
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from drills.forks import Death, Ending, run_forked
from drills.frame import Tally, repeats
from drills.leftovers import Leftovers, differing, everything
from drills.tiny_run import hidden_files
from gpt.cli import train
from gpt.errors import GPTError

RUNS = ("run-teacher", "run")
TEACHER_STEPS, STEPS = 4, 8
BETWEEN = {
    "gpt.training.trainer:Trainer.run": (1, 2),
    "gpt.training.stages:plan_run": (1, 2),
    "gpt.training.stages:carry_out": (1, 2),
    "gpt.training.setup:load_teacher": (1,),
    "gpt.training.distillation:load_trained": (1,),
    "gpt.training.distillation:predict": (1,),
    "gpt.training.setup:_create_folder": (2,),
}
"""Functions that are called between the last step of the teacher and the first of the student, and which call it is."""
STEP = "gpt.training.trainer:Trainer._train_one_step"


@dataclass(frozen=True)
class Moment:
    """When both runs are killed.

    Attributes:
        function: module and name of a function; None: see `death`.
        call: number of its call, from 1.
        after: kill when it returns, not before.
        death: at a change on disk of the student's run; its teacher is finished.
    """

    function: str | None = None
    call: int = 0
    after: bool = False
    death: Death | None = None

    def arm(self) -> None:
        """Let this process be killed, by a function that is replaced by one that does so."""
        if self.function is None:
            return
        module, _, path = self.function.partition(":")
        *owners, name = path.split(".")
        owner = importlib.import_module(module)
        for each in owners:
            owner = getattr(owner, each)
        original, calls = getattr(owner, name), 0

        def deadly(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == self.call and not self.after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = original(*arguments, **options)
            if calls == self.call:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(owner, name, deadly)


def train_both(folder: Path, moment: Moment = Moment()) -> Ending:
    """Start or continue teacher and student in a child, which may be killed."""

    def call() -> int:
        moment.arm()
        share = TEACHER_STEPS / STEPS
        return train.main(["--config", "recipe.yaml", "--resume", "auto", f"train.teacher_share={share}"])

    return run_forked(call, folder, moment.death or Death())


def moments(count: int, changes: int) -> Iterator[Moment]:
    """Yield so many moments: between the runs and around all steps from the teacher's last on, then changes on disk."""
    calls = [(STEP, call) for call in range(TEACHER_STEPS, TEACHER_STEPS + STEPS + 1)]
    calls += [(name, call) for name, numbers in BETWEEN.items() for call in numbers]
    named = [Moment(name, call, after) for name, call in calls for after in (False, True)]
    chosen = named[:: -(-len(named) // count)]
    yield from chosen
    left = count - len(chosen)
    yield from (Moment(death=Death(changes=1 + number * changes // left)) for number in range(left))


def leftovers(folder: Path) -> Leftovers:
    """Return what both runs leave."""
    runs = {name: everything(folder / "runs" / name) for name in RUNS}
    return Leftovers({f"{name}/{key}": value for name, run in runs.items() for key, value in run.items()})


def kill_stages(folder: Path, undisturbed: Path, full: bool, tally: Tally) -> None:
    """Kill teacher and student at many moments, continue them, and compare both with runs that were left alone.

    Args:
        folder: does not exist yet.
        undisturbed: has the recipe and the corpus, and no runs.
        full: at full scale.
        tally: counts.
    """
    folder.mkdir()
    copy = partial(shutil.copytree, undisturbed)
    taught, whole = copy(folder / "taught"), copy(folder / "whole")
    ending = train_both(taught, Moment("gpt.training.stages:carry_out", 2))
    assert ending.was_killed, ending.output
    ending = train_both(shutil.copytree(taught, folder / "student"))
    assert ending.code == 0, ending.output
    changes = ending.changes
    ending = train_both(whole)
    assert ending.code == 0, ending.output
    expected = leftovers(whole)
    for moment in moments(repeats(full, 50, 2), changes):
        place = shutil.copytree(undisturbed if moment.function else taught, folder / "place")
        ending = train_both(place, moment)
        tally.count("kills", ending.was_killed)
        wrong = _wrong(place, train_both(place), expected)
        tally.check(ending.was_killed, f"{moment}: not killed: {ending}")
        tally.check(not wrong, f"{moment}: {wrong}")
        tally.count("students finished", not wrong)
        tally.count("lost", bool(wrong))
        shutil.rmtree(place)


def _wrong(place: Path, ending: Ending, expected: Leftovers) -> str:
    """Return what is wrong with a teacher and a student that were killed and continued; empty if nothing."""
    if ending.code != 0:
        return ending.output[-500:]
    try:
        differences = differing(leftovers(place), expected)
    except (AssertionError, GPTError, OSError, ValueError) as error:
        return repr(error)
    return ", ".join([*differences, *hidden_files(place / "runs")])
