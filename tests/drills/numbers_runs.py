"""Values that are not finite in runs that are resumed and in pairs of processes, and spikes of the loss."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drills.frame import ROOT, Tally
from drills.numbers_cases import BAD_STEP, COMMON
from gpt.data.batches import read_windows
from gpt.errors import NonFiniteError
from gpt.training.incidents import MAX_SKIPPED, MEMORY
from gpt.training.signals import Interrupted
from gpt.training.trainer import Trainer
from patience import PATIENCE
from training.sessions import start_session

STOP, SPIKE = MEMORY // 2, MEMORY + 2


def go_on_after_a_stop(folder: Path, tally: Tally) -> None:
    """Every step from one on is bad; a run that is stopped among them and resumed goes on counting."""
    options = (*COMMON, "train.max_steps=40", "train.on_nonfinite=skip")
    stopped = ""
    for resume in (None, "auto"):
        trainer = start_session(folder / "resumed", *options, resume=resume)
        _spoil_all(trainer)
        if resume is None:
            _stop_after(trainer, BAD_STEP + 2)
        try:
            trainer.run()
        except Interrupted:
            continue
        except NonFiniteError as error:
            stopped = str(error)
    last = BAD_STEP + MAX_SKIPPED
    steps = [incident["step"] for incident in _incidents(trainer)]
    good = tally.check(
        f"step {last}" in stopped, f"a resumed run did not stop after {MAX_SKIPPED} bad steps: {stopped}"
    )
    good &= tally.check(steps == list(range(BAD_STEP, last + 1)), f"a resumed run: incidents at {steps}")
    good &= tally.check(trainer.watch.statistics.skipped == len(steps), "a resumed run does not count what it skipped")
    tally.count("trainings with a NaN or infinity")
    tally.count("stopped before the update", good)


def _spoil_all(trainer: Trainer) -> None:
    """Make the loss of every step from one on a NaN."""

    def spoil(model: torch.nn.Module, inputs: Any, logits: Tensor) -> Tensor:
        return logits * torch.nan if trainer.state.step >= BAD_STEP else logits

    trainer.model.register_forward_hook(spoil)


def find_spikes(folder: Path, tally: Tally, full: bool) -> None:
    """The logits of one step are far too large: its sequences are named, also if the run was resumed before."""
    kinds = [(order, dtype) for order in ("random", "shuffled") for dtype in ("float32", "bfloat16")]
    for order, dtype in kinds if full else kinds[:1]:
        place = folder / f"spike-{order}-{dtype}"
        options = (*COMMON, f"data.order={order}", f"run.dtype={dtype}", "train.grad_accum_steps=2")
        options += (f"train.max_steps={SPIKE + 3}", "train.log_interval=7")
        trainer = start_session(place, *options)
        _stop_after(trainer, STOP)
        with suppress(Interrupted):
            trainer.run()
        trainer = start_session(place, *options, resume="auto")
        batch = _spoil(trainer)
        trainer.run()
        found = _incidents(trainer)
        right = [(incident["kind"], incident["step"]) for incident in found] == [("spike", SPIKE)]
        right &= all(incident["windows"] for incident in found)
        if tally.check(right, f"{place.name}: not one spike at step {SPIKE} but {found}"):
            starts = torch.tensor(found[0]["windows"])
            inputs = read_windows(trainer.dataset.train, starts, trainer.config.model.block_size)[0]
            right = tally.check(torch.equal(inputs, torch.cat(batch)), f"{place.name}: it names other sequences")
        right &= tally.check(trainer.watch.statistics.spikes == 1, f"{place.name}: the spike is not counted")
        tally.count("spikes named with their sequences", right)


def _spoil(trainer: Trainer) -> list[Tensor]:
    """Make one step's logits far too large; return a list that gets the inputs of that step."""
    batch: list[Tensor] = []

    def enlarge(model: torch.nn.Module, inputs: Any, logits: Tensor) -> Tensor:
        if not (model.training and trainer.state.step == SPIKE):
            return logits
        batch.append(inputs[0])
        return logits * 1000

    trainer.model.register_forward_hook(enlarge)
    return batch


def train_pairs(folder: Path, tally: Tally, full: bool) -> None:
    """Only the second of two processes has the value; both leave out the step, and both stop."""
    folder.mkdir()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    paths = os.pathsep.join((str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])))
    command = [sys.executable, "-m", "drills.numbers_pair", str(folder), str(int(full))]
    processes = [
        subprocess.Popen(
            command,
            env={**os.environ, **shared, "RANK": rank, "LOCAL_RANK": rank, "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in ("0", "1")
    ]
    try:
        outputs = [process.communicate(timeout=PATIENCE)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    ended = all(process.returncode == 0 for process in processes)
    if not tally.check(ended, f"two processes did not end well: {[output[-1500:] for output in outputs]}"):
        return
    first, second = (json.loads((folder / f"facts-{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1))
    for case in first:
        good = True
        for rank, facts in enumerate((first[case], second[case])):
            for what, right in facts.items():
                good &= tally.check(right, f"{case}, rank {rank}: {what} is wrong")
        tally.count("pairs of processes")
        tally.count("let it into the weights", not good)


def _incidents(trainer: Trainer) -> list[dict[str, Any]]:
    file = trainer.run_folder.incidents
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def _stop_after(trainer: Trainer, stop: int) -> None:
    """Let a signal arrive during a step."""
    make = trainer.stepper.step

    def step(number: int, *arguments: Any) -> Any:
        if number == stop:
            signal.raise_signal(signal.SIGTERM)
        return make(number, *arguments)

    trainer.stepper.step = step  # type: ignore[method-assign]
