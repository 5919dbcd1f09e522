"""The same run again: on one and two threads, in another process, and across a save at every step."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from drills.frame import ROOT, Drill, Tally
from drills.leftovers import differing, everything
from gpt.training.signals import Interrupted
from patience import PATIENCE
from training.golden_curves import RECIPES, RECORDED, STEPS, record
from training.sessions import quick_beginnings, start_session

RELATIVE = 1e-3
"""Of a loss, between processors; rounding in another order moved one by 3e-4 at most."""
THREADS_RELATIVE = 1e-4
"""Of a loss, between numbers of threads: sums are split otherwise."""
NATIVE = ("run.kernels=native",)
FIGURES = ("curves", "repeated in another process", "equal on two threads", "saves and resumes", "that changed a bit")
STEPPED = (
    *("train.eval_interval=4", "train.grad_accum_steps=2", "model.dropout=0.2", "optim.ema_decay=0.9"),
    *("train.sample_tokens=4", "train.ngrams=false", "train.keep_last=1"),
)
RECORDER = """
import json, sys
from pathlib import Path
import torch
from training.golden_curves import record
folder = Path(sys.argv[1]); folder.mkdir()
torch.set_num_threads(1)
print(json.dumps(record(sys.argv[2], folder, *sys.argv[3:])))
"""


def compare_curves(folder: Path, tally: Tally, full: bool) -> None:
    """Record golden curves with one and two threads, in two processes, and compare them with those that are kept."""
    golden = json.loads(RECORDED.read_text(encoding="utf-8"))
    kinds = [(recipe, ()) for recipe in RECIPES] + [("muon", NATIVE)]
    for number, (recipe, overrides) in enumerate(kinds if full else kinds[2:3]):
        name = f"{recipe} {' '.join(overrides)}".strip()
        runs = {
            threads: _record(folder / f"{number}-{threads}", recipe, *overrides, f"run.threads={threads}")
            for threads in (1, 2)[: 1 + full]
        }
        (losses, text), kept = runs[1], golden[recipe]
        tally.count("curves", len(runs))
        near = all(abs(one / two - 1) < RELATIVE for one, two in zip(losses, kept["losses"], strict=True))
        tally.check(near and len(losses) == STEPS, f"{name}: not the curve that was recorded")
        tally.check(text == kept["text"], f"{name}: not the text that was recorded")
        again = _in_another_process(folder / f"{number}-again", recipe, *overrides, "run.threads=1")
        tally.count("repeated in another process")
        tally.check(again == [losses, text], f"{name}: another process computes something else")
        if full:
            pairs = list(zip(losses, runs[2][0], strict=True))
            tally.count("equal on two threads", all(one == two for one, two in pairs))
            far = max(abs(one / two - 1) for one, two in pairs)
            tally.check(far < THREADS_RELATIVE, f"{name}: on two threads a loss is {far:.1e} away")


def _record(folder: Path, recipe: str, *overrides: str) -> tuple[list[float], str]:
    folder.mkdir()
    return record(recipe, folder, *overrides)


def _in_another_process(folder: Path, recipe: str, *overrides: str) -> Any:
    paths = os.pathsep.join((str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])))
    command = [sys.executable, "-c", RECORDER, str(folder), recipe, *overrides]
    result = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    return json.loads(result.stdout.splitlines()[-1])


def save_at_every_step(folder: Path, tally: Tally, orders: tuple[str, ...], steps: int, every: int) -> None:
    """Stop a run after each of its steps in turn, resume it, and compare all that it leaves."""
    for order in orders:
        options = (*STEPPED, f"train.max_steps={steps}", f"data.order={order}")
        whole = folder / order
        start_session(whole, *options).run()
        expected = everything(whole / "runs" / "run")
        for stop in range(0, steps, every):
            parts = folder / f"{order}-{stop}"
            trainer = start_session(parts, *options)
            _stop_after(trainer, stop)
            with suppress(Interrupted):
                trainer.run()
            start_session(parts, *options, resume="auto").run()
            tally.count("saves and resumes")
            other = differing(expected, everything(parts / "runs" / "run"))
            tally.count("that changed a bit", bool(other))
            tally.check(not other, f"{order}, saved after step {stop}: {other[:5]} differ")


def _stop_after(trainer: Any, stop: int) -> None:
    make = trainer.stepper.step

    def step(number: int, *arguments: Any) -> Any:
        if number == stop:
            signal.raise_signal(signal.SIGTERM)
        return make(number, *arguments)

    trainer.stepper.step = step


def run(folder: Path, full: bool) -> Tally:
    """Repeat runs in every way in which they should be the same."""
    threads = torch.get_num_threads()
    tally = Tally(*FIGURES[: 2 + full], *FIGURES[3:])
    with quick_beginnings():
        compare_curves(folder, tally, full)
        torch.set_num_threads(1)
        orders = ("random", "shuffled")[: 1 + full]
        save_at_every_step(folder, tally, orders, 24 if full else 6, 1 if full else 3)
    torch.set_num_threads(threads)
    return tally


PROMISE = "A run repeats bit for bit in another process and across a save at any step; threads change rounding only."
DRILL = Drill(PROMISE, run)
