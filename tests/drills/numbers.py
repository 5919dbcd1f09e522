"""Values that are not finite, put everywhere they can come from: no update is made with them."""

import json
from pathlib import Path

import torch

from drills.frame import Drill, Tally
from drills.numbers_cases import BAD_STEP, Case, Spoiler, cases
from drills.numbers_runs import find_spikes, go_on_after_a_stop, train_pairs
from gpt.checkpoint import read_checkpoint
from gpt.errors import NonFiniteError
from gpt.training.incidents import MAX_SKIPPED
from training.sessions import quick_beginnings, start_session

FIGURES = ("trainings with a NaN or infinity", "stopped before the update", "went on without the step")
FIGURES += ("pairs of processes", "spikes named with their sequences", "let it into the weights")


def attack(folder: Path, case: Case, tally: Tally) -> None:
    """Train once, and check what became of the weights, the run and its files."""
    lines: list[str] = []
    trainer = start_session(folder, *case.overrides, report=lines.append)
    spoiler, stopped = Spoiler(trainer, case), ""
    try:
        trainer.run()
    except NonFiniteError as error:
        stopped = str(error)
    run = trainer.run_folder
    file = run.incidents
    found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    equal = spoiler.is_unchanged
    finite = all(
        bool(torch.isfinite(tensor).all())
        for path in run.checkpoints()
        for tensor in read_checkpoint(path).model.values()
    )
    expected = [] if case.is_an_overflow else list(range(BAD_STEP, BAD_STEP + 1))
    if case.is_lasting and case.mode == "skip":
        expected = list(range(BAD_STEP, BAD_STEP + MAX_SKIPPED + 1))
    if case.is_hidden:
        expected = []
    ends = not case.is_an_overflow and (case.mode == "stop" or case.is_lasting)
    good = tally.check(equal, f"{case}: the bad step changed weights or moments")
    good &= tally.check(finite, f"{case}: a checkpoint has values that are not finite")
    good &= tally.check(bool(stopped) == ends, f"{case}: {'it went on' if ends else f'it stopped: {stopped}'}")
    steps = [incident["step"] for incident in found if incident["windows"]]
    good &= tally.check(steps == expected, f"{case}: incidents at {steps} instead of {expected}")
    named = f"step {expected[-1]}" if expected else "not finite"
    good &= tally.check(not ends or named in stopped, f"{case}: not named: {stopped}")
    count = 0 if case.is_an_overflow else len(expected)
    good &= tally.check(trainer.watch.statistics.skipped == count, f"{case}: {count} steps were not counted")
    tally.count("trainings with a NaN or infinity")
    tally.count("stopped before the update" if stopped else "went on without the step")
    tally.count("let it into the weights", not (equal and finite))


def run(folder: Path, full: bool) -> Tally:
    """Attack a training of every kind at every place, resumed ones, and pairs of processes."""
    tally = Tally(*FIGURES)
    attack_alone(folder, tally, full)
    train_pairs(folder / "pairs", tally, full)
    return tally


def attack_alone(folder: Path, tally: Tally, full: bool) -> None:
    """Attack the trainings of one process."""
    with quick_beginnings():
        for number, case in enumerate(cases(full)):
            attack(folder / f"run{number}", case, tally)
        go_on_after_a_stop(folder, tally)
        find_spikes(folder, tally, full)


PROMISE = (
    "A NaN or infinity in the loss, gradients, weights or targets stops a run before the update, or is skipped and "
    "counted, also by two processes and after a resume; a spike of the loss is named with its sequences."
)
DRILL = Drill(PROMISE, run)
