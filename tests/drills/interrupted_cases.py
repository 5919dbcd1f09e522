"""The commands that the drill of signals interrupts."""

import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import gpt
from drills.interrupted import Asked, Case, after, importing, python, runs_below, shown, training
from drills.tiny_run import train_tiny
from gpt.cli import evaluate, sample, serve
from gpt.cli import train as train_command
from gpt.kernels import __main__ as kernels
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


def make_original(folder: Path) -> Path:
    """Return a folder with tiny.yaml, corpus.txt, big.txt, prompt.txt and the finished run runs/tiny."""
    folder.mkdir()
    train_tiny(folder)
    (folder / "big.txt").write_text(CORPUS * 5000, encoding="utf-8")
    (folder / "prompt.txt").write_text(CORPUS.replace("\n", " ") * 500, encoding="utf-8")
    return folder


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
