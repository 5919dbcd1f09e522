"""Trainings by two processes of which one is killed or hangs: the other ends, and both go on as if nothing had been."""

import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

from drills.forks import Death, Ending, prepare_to_fork
from drills.frame import Drill, Tally
from drills.leftovers import differing, everything
from drills.pairs import import_distributed, train_pair
from drills.tiny_run import hidden_files
from gpt.errors import GPTError
from tiny import CORPUS, TINY

RUN = Path("runs/tiny")
ENDED = (1, 2)
"""Exit codes of the process that is left: it lost the other, or never met it."""


def recipe(method: str, steps: int) -> list[str]:
    """Return the arguments of a training that goes on where it was left."""
    changes = ["model.dropout=0.1", f"train.max_steps={steps}", "train.eval_interval=1", "train.keep_last=2"]
    changes += ["train.sample_tokens=0", "run.threads=1", "run.kernels=torch", f"run.parallel={method}"]
    return ["--config", "tiny.yaml", "--resume", "auto", *changes]


def make_folder(folder: Path) -> Path:
    """Return a folder with tiny.yaml and corpus.txt."""
    folder.mkdir()
    (folder / "tiny.yaml").write_text(TINY, encoding="utf-8")
    (folder / "corpus.txt").write_text(CORPUS * 30, encoding="utf-8")
    return folder


def run(folder: Path, full: bool) -> Tally:
    """Kill either process at its messages or, where it writes, before changes on disk; then let one hang."""
    tally = Tally("kills", "runs finished", "lost")
    prepare_to_fork()
    import_distributed()
    for method in ("fsdp", "ddp") if full else ("fsdp",):
        arguments = recipe(method, 6 if full else 2)
        undisturbed = make_folder(folder / method)
        endings = train_pair(undisturbed, arguments, fault=partial(_note, undisturbed))
        assert [ending.code for ending in endings] == [0, 0], endings
        expected = everything(undisturbed / RUN)
        counts = [len((undisturbed / f"messages{rank}").read_bytes()) for rank in (0, 1)]
        killed = _attack(folder / "place", arguments, expected, tally)
        for number in range(1, endings[0].changes, 12) if full else (endings[0].changes * 2 // 3,):
            killed(f"{method}: rank 0 before change {number}", deaths=(Death(changes=number), Death()))
        for rank in (0, 1) if full else ():
            for number in range(1, counts[rank] + 1, 7):
                killed(f"{method}: rank {rank} before message {number}", fault=partial(_die, rank, number))
        if full:
            hang = partial(_hang, 1, counts[1] // 2)
            killed(f"{method}: rank 1 hangs", fault=hang, patience=5.0)
    return tally


def _attack(place: Path, arguments: list[str], expected: dict[str, object], tally: Tally) -> Callable[..., None]:
    def attack(name: str, **how: object) -> None:
        make_folder(place)
        endings = train_pair(place, arguments, **how)  # type: ignore[arg-type]
        tally.count("kills", any(ending.was_killed for ending in endings))
        wrong = _wrong_ending(endings)
        endings = train_pair(place, arguments)
        wrong = wrong or _lost(place, endings, expected)
        tally.check(not wrong, f"{name}: {wrong}")
        tally.count("runs finished", not wrong)
        tally.count("lost", bool(wrong))
        shutil.rmtree(place)

    return attack


def _wrong_ending(endings: tuple[Ending, Ending]) -> str:
    """Return what is wrong with how the process that is left ended."""
    for ending in endings:
        if not ending.was_killed and (ending.code not in (0, *ENDED) or "Traceback" in ending.output):
            return f"the other ended with {ending.code}: {ending.output[-500:]}"
    if sum(ending.was_killed for ending in endings) == 2:
        return "the other did not end by itself"
    return ""


def _lost(place: Path, endings: tuple[Ending, Ending], expected: dict[str, object]) -> str:
    """Return what the run that was continued lacks or has too much."""
    if [ending.code for ending in endings] != [0, 0]:
        return f"it does not continue: {[(ending.code, ending.output[-400:]) for ending in endings]}"
    try:
        differences = differing(everything(place / RUN), expected)
    except (AssertionError, GPTError, OSError, ValueError) as error:
        return repr(error)
    return ", ".join([*differences, *hidden_files(place / "runs")])


def _note(folder: Path, rank: int, message: int) -> None:
    with (folder / f"messages{rank}").open("ab") as file:
        file.write(b".")


def _die(rank: int, number: int, own: int, message: int) -> None:
    if (own, message) == (rank, number):
        os.kill(os.getpid(), signal.SIGKILL)


def _hang(rank: int, number: int, own: int, message: int) -> None:
    if (own, message) == (rank, number):
        os.kill(os.getpid(), signal.SIGSTOP)


DRILL = Drill(
    "Of two processes that train together, by DDP or FSDP2, either may be killed at any message to the other or before "
    "any change on disk, or hang: the other ends in one line, and both continue as if nothing had been, bit for bit.",
    run,
)
