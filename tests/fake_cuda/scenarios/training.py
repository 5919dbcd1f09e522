"""Whole training runs: steps that nothing waits in, evaluations, checkpoints, and going on from them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fake_cuda.device import FakeCuda
from fake_cuda.setting import configured
from fake_cuda.torch_cuda import GENERATOR_STATE
from gpt.api.displays import draw_attention
from gpt.cli import evaluate
from gpt.environment import read_settings
from gpt.model import GPT
from gpt.model.gpt import Block
from gpt.training.averaging import WeightAverage
from gpt.training.compiling import compile_blocks
from gpt.training.setup import Displays, open_session
from gpt.training.step import Stepper
from gpt.training.trainer import Trainer
from tiny import tiny_config

EVERYTHING = (
    *("model.dropout=0.1", "optim.name=muon", "optim.ema_decay=0.9", "optim.grad_clip=1.0"),
    "train.grad_accum_steps=2",
)


@contextmanager
def watched_steps(device: FakeCuda, float32: bool) -> Iterator[None]:
    """Within, a step and an update of the average must not wait for the device, nor multiply in float32."""

    def watch(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            with device.refusing(waits=True, float32=not float32):
                return function(*arguments)

        return call

    with (
        mock.patch.object(Stepper, "step", watch(Stepper.step)),
        mock.patch.object(WeightAverage, "update", watch(WeightAverage.update)),
    ):
        yield


def train(device: FakeCuda, *overrides: str, resume: str | None = None, float32: bool = False) -> dict[str, Any]:
    """A run to its end."""
    displays = Displays(picture=draw_attention)
    trainer = open_session(configured(*overrides), read_settings(), print, resume, True, displays=displays)
    begin = trainer.state.step
    with watched_steps(device, float32):
        state = trainer.run()
    return {"begin": begin, "end": state.step, "evaluated": state.evaluated_step, **facts_of(trainer, device)}


def facts_of(trainer: Trainer, device: FakeCuda) -> dict[str, Any]:
    """Where and in what everything is."""
    optimizer = trainer.stepper.optimizer
    tensors = [leaf for leaf in tree_leaves(optimizer.state_dict()) if isinstance(leaf, Tensor)]
    parameters = list(trainer.model.parameters())
    return {
        "devices": sorted({str(tensor.device) for tensor in [*parameters, *tensors]}),
        "states": len(tensors),
        "gradients": sorted({str(p.grad.dtype) for p in parameters if p.grad is not None}),
        "fused": optimizer.optimizers["adamw"].defaults["fused"],
        "matmuls": sorted({str(dtype) for dtype, place, _ in device.matmuls if place == "orthogonalize" or not place}),
        "precisions": sorted({precision for _, place, precision in device.matmuls if not place}),
        "precision afterwards": torch.get_float32_matmul_precision(),
        "pageable": sorted(set(device.pageable)),
    }


def evaluated(device: FakeCuda) -> dict[str, Any]:
    """The command; how often it waits does not depend on the number of batches."""
    codes, waits = [], []
    for size in ("8", "64"):
        device.forget()
        codes.append(evaluate.main(["--checkpoint", "runs/bfloat16", "--device", "cuda", "--batch-size", size]))
        waits.append(sum(event.place == "evaluate" for event in device.waits))
    return {"codes": codes, "waits": waits}


def moved(device: FakeCuda) -> dict[str, Any]:
    """Going on with two visible devices, then on the CPU: which generators are restored, and what is said."""
    restored: list[str] = []
    said: list[list[str]] = [[], []]
    change = ("train.max_steps=4", "run.name=bfloat16", "run.dtype=bfloat16", *EVERYTHING)
    with (
        mock.patch.object(torch.cuda, "device_count", return_value=2),
        mock.patch.object(torch.cuda, "set_rng_state", lambda state, device: restored.append(str(device))),
    ):
        for lines, place in zip(said, ("cuda", "cpu"), strict=True):
            loaded = configured(f"run.device={place}", *change)
            trainer = open_session(loaded, read_settings(), lines.append, "auto", allow_config_change=True)
            trainer.run_folder.unlock()
    return {"restored": restored, "said": [[line for line in lines if "dropout" in line] for lines in said]}


def tried(device: FakeCuda) -> dict[str, Any]:
    """A trial of compiled blocks with two visible devices: whose random numbers it undoes."""
    read: list[str] = []
    model = GPT(tiny_config()).to("cuda:0")

    def state(of: object) -> Tensor:
        read.append(str(of))
        return GENERATOR_STATE

    with (
        mock.patch.object(torch.cuda, "device_count", return_value=2),
        mock.patch.object(torch.cuda, "get_rng_state", state),
        mock.patch.object(Block, "compile"),
    ):
        compile_blocks(model, lambda: None, True, print)
    return {"read": read}


SCENARIOS: dict[str, Callable[[FakeCuda], dict[str, Any]]] = {
    "bfloat16": lambda device: train(
        device, "run.name=bfloat16", "run.dtype=bfloat16", "train.attention_interval=1", *EVERYTHING
    ),
    "resume": lambda device: train(
        device, "run.name=bfloat16", "run.dtype=bfloat16", *EVERYTHING, "train.max_steps=3", resume="auto"
    ),
    "float16": lambda device: train(device, "run.name=float16", "run.dtype=float16", *EVERYTHING),
    "resume float16": lambda device: train(
        device, "run.name=float16", "run.dtype=float16", *EVERYTHING, "train.max_steps=3", resume="auto"
    ),
    "adamw": lambda device: train(device, "run.name=adamw", "model.attention=reference", "model.position=learned"),
    "float32": lambda device: train(device, "run.name=float32", "run.dtype=float32", float32=True),
    "evaluate": evaluated,
    "moved": moved,
    "tried": tried,
}
"""By name; `auto` resolves to bfloat16 where none is given. They run in this order."""
