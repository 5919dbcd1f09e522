"""SIGKILL before every change that a program makes on disk, at random moments, and in the middle of writes."""

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from drills.forks import Death, Ending, prepare_to_fork, run_forked
from drills.killed_commands import stop, undisturbed
from drills.leftovers import all_runs, lost
from drills.tally import Tally
from drills.tiny_run import make_folder
from gpt.cli import train

RECIPE = """
run: {name: run, device: cpu, dtype: float32, compile: false, kernels: torch, threads: 1}
data: {source: file, path: corpus.txt}
model: {n_layer: 1, n_head: 2, n_embd: 16, block_size: 16, dropout: 0.1}
optim: {warmup_steps: 2}
train:
  batch_size: 2
  grad_accum_steps: 2
  max_steps: 8
  eval_interval: 2
  eval_max_tokens: 64
  log_interval: 1
  sample_tokens: 4
  keep_last: 2
"""
"""With dropout."""
COUNT = 20
EARLIER = "runs/run/checkpoints/step-000002"
Look = Callable[[Path, Death, Ending, Tally], str]


def was_killed(place: Path, death: Death, ending: Ending, tally: Tally) -> str:
    """Count a kill, and return what is wrong with how a process ended."""
    tally.count("kills", ending.was_killed)
    return "" if ending.was_killed or ending.code == 0 else f"{ending}"


@dataclass(frozen=True)
class Subject:
    """What is stopped, and continued by the same command.

    Attributes:
        name: its figure.
        call: starts or continues it, in a child.
        deaths: how it is stopped at full scale and at the small one, given how many changes it makes on disk.
        in_a_row: how often one run is stopped at most before it may finish.
        make: makes the folder that it works in.
        look: counts a stop, and returns what is wrong with how it ended and with what it left.
    """

    name: str
    call: Callable[[], int]
    deaths: Callable[[bool, int], Iterator[Death]]
    in_a_row: int = 1
    make: Callable[[Path], Path] = make_folder
    look: Look = was_killed


def resume(*options: str) -> int:
    return train.main(["--config", "tiny.yaml", "--resume", "auto", *options])


def resume_from_earlier() -> int:
    """Continue a finished run from an earlier checkpoint, or that; the checkpoints after it are replaced."""
    mark = Path("begun")
    if mark.exists():
        return resume()
    mark.touch()
    return train.main(["--config", "tiny.yaml", "--resume", EARLIER])


def make_recipe(folder: Path) -> Path:
    return make_folder(folder, RECIPE)


def make_finished(folder: Path) -> Path:
    ending = run_forked(partial(resume, "train.keep_last=9"), make_recipe(folder))
    assert ending.code == 0, ending.output
    return folder


def everywhere(full: bool, changes: int) -> Iterator[Death]:
    """Yield a death before every second change on disk, at random moments, and in writes of random files."""
    chance = random.Random(0)
    yield from (Death(changes=number) for number in range(1, changes + 1, 2 if full else changes // 4))
    yield from (Death(seconds=chance.uniform(0, 0.3)) for _ in range(40 if full else 1))
    yield from (Death(file_bytes=chance.randrange(50_000)) for _ in range(40 if full else 1))


def spread(full: bool, changes: int) -> Iterator[Death]:
    """Yield `COUNT` deaths before changes on disk, as far from each other as can be, and one at the small scale."""
    number = COUNT if full else 1
    yield from (Death(changes=1 + (2 * index + 1) * changes // (2 * number)) for index in range(number))


SUBJECTS = (
    Subject("runs finished", resume, everywhere, in_a_row=3, make=make_recipe),
    Subject("runs finished", resume_from_earlier, spread, make=make_finished),
)


def attack(subject: Subject, folder: Path, full: bool, tally: Tally) -> None:
    """Stop it in every way, continue it, and compare what it leaves with what it leaves undisturbed."""
    folder.mkdir()
    whole = subject.make(folder / "undisturbed")
    ending = run_forked(subject.call, whole)
    if not tally.check(ending.code == 0, f"{subject.name}, undisturbed: {ending}"):
        return
    expected = all_runs(whole / "runs")
    waiting = list(subject.deaths(full, ending.changes))
    random.Random(1).shuffle(waiting)
    while waiting:
        place, wrong = subject.make(folder / "place"), ""
        dying = [waiting.pop() for _ in range(min(subject.in_a_row if full else 1, len(waiting)))]
        for death in dying:
            wrong += subject.look(place, death, run_forked(subject.call, place, death), tally)
        tally.outcome(subject.name, wrong + lost(place, run_forked(subject.call, place), expected), f"{dying}")
        shutil.rmtree(place)


def kill_commands(folder: Path, full: bool, tally: Tally) -> None:
    """Kill each command before each change (or a few), and in writes; then it ends as if nothing had been."""
    for command, changes, expected in undisturbed(folder):
        deaths = [Death(changes=number) for number in (range(1, changes + 1) if full else (changes // 2 + 1,))]
        for death in (*deaths, *(Death(file_bytes=size) for size in ((0, 1000, 10_000) if full else (1000,)))):
            ending, wrong = stop(command, folder, death, expected)
            tally.count("kills", ending.was_killed)
            tally.outcome("commands finished", wrong, f"{command.name} after {death}")


def run(folder: Path, full: bool) -> Tally:
    tally = Tally("kills", *dict.fromkeys(subject.name for subject in SUBJECTS), "commands finished", "lost")
    prepare_to_fork()
    for number, subject in enumerate(SUBJECTS):
        attack(subject, folder / str(number), full, tally)
    kill_commands(folder / "commands", full, tally)
    return tally
