"""SIGTERM, SIGINT and SIGHUP at random moments of a training, and in all else that takes long."""

import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import gpt
from drills.forks import Death, Ending, prepare_to_fork
from drills.interrupted import (
    Asked,
    Case,
    adopt_orphans,
    after,
    converse,
    importing,
    python,
    runs_below,
    shown,
    training,
    try_case,
    unsaved,
)
from drills.kill import Outcome, Subject, attack, resume, stop, undisturbed
from drills.leftovers import train_tiny
from gpt.cli import evaluate, sample, serve
from gpt.cli import train as train_command
from gpt.native import __main__ as kernels
from tiny import CORPUS

ENDLESS = ("run.threads=1", "run.kernels=torch", "train.max_steps=100000")
SLOW_EVALUATION = ("data.path=big.txt", "data.val_fraction=0.9")
RUN = ("--checkpoint", "runs/tiny")
LONG = ("--max-new-tokens", "100000000")
EVALUATE = [*RUN, "--text-file", "big.txt", "--protocol", "sliding", "--stride", "1"]
SERVE = [*RUN, "--port", "0", "--backend", "eager", "--max-tokens", "4000000", "--drain-seconds"]
SCRIPT = str(Path(gpt.__file__).parents[1] / "scripts" / "train.py")
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", SCRIPT)
Attack = tuple[Case, Sequence[signal.Signals], Sequence[str]]
ALL = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
WAYS = ("once", "at once", "twice", "closed")


def train(*changes: str, eval_interval: int = 1000) -> Callable[[], int]:
    usual = ("run.name=new", f"train.eval_interval={eval_interval}", *ENDLESS)
    return partial(train_command.main, ["--config", "tiny.yaml", "--resume", "auto", *usual, *changes])


def compile_kernels() -> int:
    """Compile all kernels into a cache in the working directory."""
    os.environ["XDG_CACHE_HOME"] = "cache"
    return kernels.main()


SESSION = partial(sample.main, [*RUN, "--interactive", *LONG])
TALK = ("train.sample_tokens=200", "train.eval_max_tokens=64")
BEGUN = after(0.3, shown("/100000"))
"""The progress bar of a training is there."""
STEP = training("new", "train/loss")
TRAINING = (
    Case("training", train(), STEP, saves="new"),
    Case("evaluating in a training", train(*SLOW_EVALUATION, eval_interval=1), BEGUN, saves="new"),
    Case("sampling in a training", train("train.sample_tokens=100000000", eval_interval=1), BEGUN, saves="new"),
    Case("training on a stopped terminal", train(*TALK, eval_interval=1), after(1.5, STEP), saves="new", reading=False),
    Case(
        "a step of minutes",
        train("train.grad_accum_steps=200000"),
        after(0.5, BEGUN),  # its first, so that there is nothing to save
        ends=False,
    ),
)
COMMANDS = (
    Case("evaluate", partial(evaluate.main, EVALUATE), after(0.5)),
    Case("sample", partial(sample.main, [*RUN, "--prompt", "It was", *LONG]), shown("It was")),
    Case(
        "sample on a stopped terminal",
        partial(sample.main, [*RUN, "--prompts-file", "prompt.txt", "--crop-prompt", *LONG]),
        after(0.5),
        reading=False,
    ),
    Case("an answer to a prompt", SESSION, shown("It was\x1b[0m"), typed=b"It was\n", ctrl_c=False),
)
"""Forked from the drill, which has imported what they need."""
COMPILE = Case("compiling kernels", compile_kernels, runs_below("cc1plus"))
PROMPT = Case("a prompt that waits", partial(sample.main, [*RUN, "--interactive"]), shown("> "), ctrl_c=False)
SERVER = Case("a server at its deadline", partial(serve.main, [*SERVE, "0.2"]), Asked())
SLOW = (
    Case("torch.compile", train("run.compile=true"), runs_below("cc1plus")),
    Case(
        "torchrun",
        python(*TORCHRUN, "--config", "tiny.yaml", "run.name=new", *ENDLESS),
        training("new"),
        saves="new",
        ours=False,
    ),
)


def chosen(full: bool) -> Iterator[Attack]:
    """Yield commands with the signals and the ways to send them: all, or some that show every break in seconds."""
    if not full:
        yield TRAINING[0], ALL[:1], ["at once"]
        yield TRAINING[1], ALL[2:], ["closed"]
        yield TRAINING[2], ALL[1:2], ["once"]
        yield TRAINING[3], ALL[2:], ["once"]
        yield TRAINING[4], ALL[1:2], ["twice"]
        yield PROMPT, ALL[:1], ["once"]
        yield COMPILE, ALL[:1], ["once"]
        yield starting(0.0), ALL[1:2], ["once"]
        return
    for case in (*TRAINING, *COMMANDS, PROMPT, COMPILE):
        yield case, ALL, WAYS if case.reading else WAYS[::3]
    yield SERVER, ALL[:2], ["once"]
    for case in SLOW:
        yield case, ALL[:2], ["once"]
        yield case, ALL[2:], ["twice"]
    chance = random.Random(0)
    for number in range(24):
        yield starting(chance.uniform(0, 2.2)), [ALL[number % 3]], ["once"]


def starting(seconds: float) -> Case:
    """Return a command that has been importing, making its run folder and training its first steps for so long."""
    return Case(
        f"{seconds:.2f} s after the first imports of train",
        python(SCRIPT, "--config", "tiny.yaml", "run.name=new", *ENDLESS),
        after(seconds, importing),
        saves="new",
        imports=True,
    )


CHANGES = ("run.threads=1", "run.kernels=torch", "train.max_steps=60", "train.eval_interval=10", "model.dropout=0.1")


def moments(full: bool, changes: int) -> Iterator[Death]:
    chance = random.Random(0)
    for _ in range(20 if full else 1):
        yield from (Death(seconds=chance.uniform(0, 0.4), number=number) for number in ALL)


def was_stopped(place: Path, death: Death, ending: Ending) -> tuple[str, str]:
    """Return the figure of a signal, and what is wrong with how a training ended and with what it saved."""
    has_begun = "stopped by" in ending.output
    figure = "trainings stopped and saved" if ending.code == 128 + death.number and has_begun else "too early or late"
    if ending.code in (0, -death.number) and "Traceback" not in ending.output:
        return figure, ""  # done already, or not listening yet
    if ending.code != 128 + death.number or "Traceback" in ending.output:
        return figure, f"exit code {ending.code} after {death.number.name}: {ending.output[-1500:]}"
    return figure, ", ".join(unsaved(place / "runs" / "tiny", has_begun))


STOPPED = Subject("trainings finished", partial(resume, *CHANGES), moments, in_a_row=3, look=was_stopped)


def run(folder: Path, full: bool) -> Iterator[Outcome]:
    """Interrupt trainings; commands before changes on disk; and on terminals, while they compute, wait or compile."""
    prepare_to_fork()
    yield from attack(STOPPED, folder / "trainings", full)
    writing = folder / "writing"
    for command, changes, expected in undisturbed(writing):
        for change in range(1, changes + 1) if full else (changes // 2 + 1,):
            number = ALL[change % len(ALL)]
            _, wrong = stop(command, writing, Death(changes=change, number=number), expected)
            yield "commands stopped", f"{command.name}, {number.name} before change {change}", wrong
    adopt_orphans()
    original = folder / "original"
    train_tiny(original)
    (original / "big.txt").write_text(CORPUS * 5000, encoding="utf-8")
    (original / "prompt.txt").write_text(CORPUS.replace("\n", " ") * 500, encoding="utf-8")
    yield "commands stopped", "Ctrl-C in a session", "; ".join(converse(SESSION, original))
    for case, numbers, ways in chosen(full):
        for what, wrong in try_case(case, folder, original, numbers, ways):
            yield "commands stopped", what, "; ".join(wrong)
