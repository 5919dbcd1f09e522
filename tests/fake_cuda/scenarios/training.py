"""Whole training runs: steps that nothing waits in, evaluations, checkpoints, and going on from them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch import Tensor
from torch.utils._pytree import tree_leaves

from fake_cuda.device import FakeCuda
from fake_cuda.setting import configured
from gpt.cli import evaluate
from gpt.environment import read_settings
from gpt.training.averaging import WeightAverage
from gpt.training.setup import open_session
from gpt.training.step import Stepper
from gpt.training.trainer import Trainer

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
    trainer = open_session(configured(*overrides), read_settings(), print, resume, allow_config_change=True)
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
        "matmuls": sorted({str(dtype) for dtype, place in device.matmuls if place == "orthogonalize" or not place}),
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
}
"""By name; `auto` resolves to bfloat16 where none is given. They run in this order."""
