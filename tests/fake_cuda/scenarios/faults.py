"""One fault of each kind, planted: the device must see every one. An error is what these scenarios are to end with."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from fake_cuda.device import FakeCuda
from fake_cuda.scenarios.decoding import decode
from fake_cuda.scenarios.training import train
from gpt.generation import DecodeOptions
from gpt.model import attention
from gpt.model.layers import MLP
from gpt.training.step import NonFiniteGuard

RUN = ("run.dtype=bfloat16", "train.eval_first=false", "train.max_steps=2")


def mask_on_the_cpu(device: FakeCuda) -> dict[str, Any]:
    """A tensor that was made without naming a device."""
    made = attention.causal_mask
    with mock.patch.object(attention, "causal_mask", lambda queries, keys, _: made(queries, keys, torch.device("cpu"))):
        return train(device, *RUN, "run.name=mask", "model.attention=reference")


def read_in_the_step(device: FakeCuda) -> dict[str, Any]:
    """An if on a tensor."""
    observe = NonFiniteGuard.observe

    def reading(guard: NonFiniteGuard, step: int, loss: Tensor, norm: Tensor) -> None:
        if torch.isfinite(loss):
            observe(guard, step, loss, norm)

    with mock.patch.object(NonFiniteGuard, "observe", reading):
        return train(device, *RUN, "run.name=read")


def copied_back_in_the_step(device: FakeCuda) -> dict[str, Any]:
    """A copy to the CPU, for what could be computed on the device."""
    observe = NonFiniteGuard.observe

    def reading(guard: NonFiniteGuard, step: int, loss: Tensor, norm: Tensor) -> None:
        observe(guard, step, loss.cpu().to(loss.device), norm)

    with mock.patch.object(NonFiniteGuard, "observe", reading):
        return train(device, *RUN, "run.name=copied")


def float32_in_the_step(device: FakeCuda) -> dict[str, Any]:
    """A layer that leaves autocast."""
    forward = MLP.forward

    def leaving(mlp: MLP, x: Tensor) -> Tensor:
        with torch.autocast("cuda", enabled=False):
            return forward(mlp, x.float())

    with mock.patch.object(MLP, "forward", leaving):
        return train(device, *RUN, "run.name=float32")


def read_while_decoding(device: FakeCuda, backend: str) -> dict[str, Any]:
    """A number read back in every block."""
    forward = MLP.forward

    def reading(mlp: MLP, x: Tensor) -> Tensor:
        return forward(mlp, x) * float(x.abs().max())

    with mock.patch.object(MLP, "forward", reading):
        return decode(device, DecodeOptions(backend))


SCENARIOS: dict[str, Callable[[FakeCuda], dict[str, Any]]] = {
    "wrong device": mask_on_the_cpu,
    "read in the training step": read_in_the_step,
    "copy in the training step": copied_back_in_the_step,
    "float32 in the training step": float32_in_the_step,
    "read in the decode step": lambda device: read_while_decoding(device, "eager"),
    "read in a graph": lambda device: read_while_decoding(device, "compiled"),
}
"""By name, in the order in which they run."""
