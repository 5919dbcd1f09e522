"""SIGKILL before every change that a program makes on disk, at random moments, and in the middle of writes."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from drills.forks import Death, Ending, prepare_to_fork, run_forked
from drills.frame import Drill, Tally
from drills.killed_commands import kill_commands
from drills.killed_sweeps import kill_sweeps
from drills.leftovers import differing, everything
from drills.tiny_run import hidden_files
from gpt.cli import train
from gpt.errors import GPTError
from tiny import CORPUS

RECIPE = """
run: {name: run, device: cpu, dtype: float32, compile: false, kernels: torch, threads: 1}
data: {source: file, path: corpus.txt}
model: {n_layer: 1, n_head: 2, n_embd: 16, block_size: 16, dropout: 0.1}
optim: {warmup_steps: 2, ema_decay: 0.9}
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
RUN = Path("runs/run")
EARLIER = "runs/run/checkpoints/step-000002"
MAX_DEATHS = 3
"""How often one run is killed before it may finish."""


def make_folder(folder: Path) -> Path:
    """Return a folder with recipe.yaml and corpus.txt."""
    folder.mkdir()
    (folder / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    (folder / "corpus.txt").write_text(CORPUS * 20, encoding="utf-8")
    return folder


def resume(folder: Path, death: Death = Death(), point: str = "auto", keep: int = 2) -> Ending:  # noqa: B008
    """Start or continue the run in a child."""
    arguments = ["--config", "recipe.yaml", "--resume", point, f"train.keep_last={keep}"]
    return run_forked(lambda: train.main(arguments), folder, death)


def deaths(full: bool, changes: int) -> Iterator[Death]:
    """Yield a death before every second change on disk, at random moments, and in writes of random files."""
    chance = random.Random(0)
    yield from (Death(changes=number) for number in range(1, changes + 1, 2 if full else changes // 7))
    yield from (Death(seconds=chance.uniform(0, 0.3)) for _ in range(40 if full else 1))
    yield from (Death(file_bytes=chance.randrange(50_000)) for _ in range(40 if full else 1))


def kill_training(folder: Path, full: bool, tally: Tally) -> None:
    """Kill runs, each up to three times, and compare each in the end with one that was never disturbed."""
    folder.mkdir()
    undisturbed = make_folder(folder / "undisturbed")
    ending = resume(undisturbed, keep=9)
    assert ending.code == 0, ending.output
    expected = everything(undisturbed / RUN)
    waiting = list(deaths(full, ending.changes))
    random.Random(1).shuffle(waiting)
    while waiting:
        dying = [waiting.pop() for _ in range(min(MAX_DEATHS if full else 1, len(waiting)))]
        place = make_folder(folder / f"run{len(waiting)}")
        again = len(waiting) % 4 == 3
        if again:  # another pass over a finished run replaces its checkpoints
            shutil.copytree(undisturbed, place, dirs_exist_ok=True)
        for number, death in enumerate(dying):
            ending = resume(place, death, EARLIER if again and number == 0 else "auto")
            tally.count("kills", ending.was_killed)
            tally.check(ending.was_killed or ending.code == 0, f"{dying}: {ending}")
        ending = resume(place)
        lost = _lost(place, ending, expected)
        tally.count("runs finished", not lost)
        tally.count("lost", bool(lost))
        tally.check(not lost, f"{dying}: {lost}")
        shutil.rmtree(place)


def _lost(place: Path, ending: Ending, expected: dict[str, object]) -> str:
    """Return what a run that was killed and resumed lacks or has too much; empty if nothing."""
    if ending.code != 0:
        return ending.output[-500:]
    try:
        differences = differing(everything(place / RUN), expected)
    except (AssertionError, GPTError, OSError, ValueError) as error:
        return repr(error)
    return ", ".join([*differences, *hidden_files(place / "runs")])


def run(folder: Path, full: bool) -> Tally:
    """Kill trainings, sweeps, and other commands that write."""
    tally = Tally("kills", "runs finished", "sweeps finished", "commands finished", "lost")
    prepare_to_fork()
    kill_training(folder / "training", full, tally)
    kill_commands(folder / "commands", full, tally)
    kill_sweeps(folder / "sweeps", full, tally)
    return tally


DRILL = Drill(
    "A run that is killed before any change on disk, at any moment or in any write continues with `--resume auto`, and "
    "ends as one that was never disturbed, bit for bit; so do sweeps, shards, downloads, "
    "exports and imports.",
    run,
)
