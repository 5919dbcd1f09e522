"""What two processes do that train together: `two_processes.py FOLDER`, by torchrun, runs every
scenario in each.

Rank R writes FOLDER/facts-R.json: what each rank has to say of each scenario. With other arguments
it is `scripts/train.py`, whose rank 1 is killed in the middle of a step, unless torchrun has
started it again.
"""

import json
import os
import shutil
import signal
import sys
import weakref
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from gpt.cli import train
from gpt.data.batches import build_sampler
from gpt.native.build import find_compiler
from gpt.system.distributed import World, joined
from gpt.system.distributed.process_group import ProcessGroup, report_once
from gpt.system.environment import read_launch
from gpt.system.errors import DeviceError, GPTError
from gpt.training.objective import Losses, Objective
from gpt.training.signals import Interrupted
from gpt.training.step import Stepper
from training.sessions import quick_beginnings, start_session

RATES = ("optim.learning_rate=1e-3", "optim.min_lr=1e-4")
EQUAL = (*RATES, "train.max_steps=20", "train.eval_interval=10", "train.batch_size=32")
MUON = ("optim.name=muon", "optim.weight_decay=0.1", "optim.grad_clip=0")
VARIANTS = {
    "adamw": (*EQUAL, "train.batch_size=16", "train.grad_accum_steps=2", "data.order=shuffled"),
    "muon": (*EQUAL, *MUON),
}
"""Runs that are compared with those of one process."""
HALVES = ("train.batch_size=16", "train.grad_accum_steps=2")
"""How one process computes the gradients of `muon` as two do: those of half a batch each, and then
their sum.
"""
NATIVE = (
    *EQUAL,
    "run.kernels=native",
    "model.n_embd=64",
    "model.position=rope",
    "train.length_warmup=[0.5]",
)
LINES = (*EQUAL, "data.items=lines", "model.block_size=96")
"""Windows of items, of which the processes count different numbers of targets."""
DROPOUT = ("train.max_steps=9", "model.dropout=0.2")
STOPPED_AT = 4


def equal_runs(folder: Path, world: World) -> dict[str, Any]:
    """Train every variant.

    Return what this rank reads in the first step, and what there is to read.
    """
    read = {}
    for variant, overrides in VARIANTS.items():
        trainer = start_session(folder / f"{variant}-pair", *overrides, world=world)
        with patch.object(trainer.stepper, "step", wraps=trainer.stepper.step) as step:
            trainer.run()
        config = trainer.config
        tokens = trainer.dataset.train
        sampler = build_sampler(config.data.order, tokens, config.model.block_size, config.run.seed)
        whole = sampler.get_batch(config.train.batch_size * config.train.grad_accum_steps)[0]
        first_step = step.call_args_list[0].args[2]
        read[variant] = {
            "read": [batch.inputs.tolist() for batch in first_step],
            "whole": whole.tolist(),
        }
    start_session(folder / "lines-pair", *LINES, world=world).run()
    if find_compiler() is not None:
        start_session(folder / "native-pair", *NATIVE, world=world).run()
    return read


def signal_to_one(folder: Path, world: World) -> list[int]:
    """Stop by a signal to rank 1 in the middle of a step.

    Go on here, and leave another run to the parent.
    """
    stopped: list[int] = []
    start_session(folder / "straight", *DROPOUT, world=world).run()
    trainer = start_session(folder / "stopped", *DROPOUT, world=world)
    step = trainer.stepper.step

    def step_with_signal(number: int, *arguments: Any) -> Any:
        if number == STOPPED_AT and world.rank == 1:
            signal.raise_signal(signal.SIGTERM)
        return step(number, *arguments)

    with patch.object(trainer.stepper, "step", step_with_signal):
        try:
            trainer.run()
        except Interrupted as interrupted:
            stopped = [trainer.state.step, interrupted.exit_code]
    world.rank_zero(lambda: shutil.copytree(folder / "stopped", folder / "left"))
    torch.manual_seed(0)  # another process has other numbers in its generators
    start_session(folder / "stopped", *DROPOUT, world=world, resume="auto").run()
    return stopped


def from_one_to_two(folder: Path, world: World) -> list[str]:
    """Continue what the parent, alone, has left."""
    said: list[str] = []
    start_session(folder / "alone", *DROPOUT, world=world, resume="auto", report=said.append).run()
    return said


def failed_saves(folder: Path, world: World) -> list[Any]:
    """A checkpoint that cannot be written is no reason to stop, or for ranks to differ; at the end
    it is one.
    """
    trainer = start_session(folder / "full", world=world)
    if world.is_main:
        (trainer.run_folder.path / "checkpoints").write_text(
            "a file in its place", encoding="utf-8"
        )
    try:
        trainer.run()
    except GPTError as error:
        return [trainer.state.step, trainer.state.best_step, type(error).__name__, error.exit_code]
    return []


def not_finite(folder: Path, world: World) -> list[Any]:
    """A loss that is not finite in rank 1 stops both in the same step."""
    trainer = start_session(folder / "bad", world=world)

    plain = Objective.__call__

    def bad_loss(*arguments: Any) -> Any:
        factor = float("nan") if trainer.state.step == 2 and world.rank == 1 else 1.0
        losses = plain(*arguments)
        return Losses(losses.minimized * factor, losses.cross_entropy * factor, losses.terms)

    with patch.object(Objective, "__call__", bad_loss):
        try:
            trainer.run()
        except GPTError as error:
            return [trainer.state.step, error.exit_code]
    return []


def error_of_one(folder: Path, world: ProcessGroup) -> str:
    """Rank 1 has no device, and is the one to say so."""
    try:
        with report_once(world), world.together():
            if world.rank == 1:
                raise DeviceError("there is none")
    except GPTError as error:
        return type(error).__name__
    return ""


def main(folder: Path) -> None:
    scenarios: tuple[Any, ...] = (
        equal_runs,
        signal_to_one,
        from_one_to_two,
        failed_saves,
        not_finite,
    )
    facts: dict[str, Any] = {}
    with joined(read_launch()) as world:
        for scenario in (*scenarios, error_of_one):
            facts[scenario.__name__] = scenario(folder, world)
        group = weakref.ref(dist.group.WORLD)
    facts["group"] = str(group())
    (folder / f"facts-{world.rank}.json").write_text(json.dumps(facts), encoding="utf-8")


def killed_once(stepper: Stepper, number: int, *arguments: Any) -> Any:
    """Do a step, or be killed."""
    if (
        number == STOPPED_AT
        and os.environ["RANK"] == "1"
        and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    ):
        os.kill(os.getpid(), signal.SIGKILL)
    return step(stepper, number, *arguments)


if __name__ == "__main__":
    step = Stepper.step
    with quick_beginnings():
        if len(sys.argv) == 2:
            main(Path(sys.argv[1]))
            sys.exit()
        with patch.object(Stepper, "step", killed_once):
            sys.exit(train.main())
