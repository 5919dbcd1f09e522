"""Train, and detect waiting, on a CUDA device."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gpt.config import OptimConfig
from gpt.model import GPT
from gpt.system.device import Compute
from gpt.training.objective import Objective
from gpt.training.optimizers import build_optimizer
from gpt.training.step import Stepper


def stepper_of(
    model: GPT,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    kind: type[Stepper] = Stepper,
    **optim: object,
) -> Stepper:
    """Return the stepper of a model that is on the device.

    With float32 it computes exactly, without TF32.
    """
    config = OptimConfig.model_validate(
        {"learning_rate": 3e-3, "min_lr": 0.0, "warmup_steps": 0, **optim}
    )
    fast_dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    optimizer = build_optimizer(model, config, device, fast_dtype)
    objective = Objective(0.9, mtp_weights=(0.5, 0.25), mtp_steps=12)
    grad_clip = 1.0
    return kind(model, optimizer, Compute(device, dtype), grad_clip, objective)


@contextmanager
def no_synchronization(device: torch.device) -> Iterator[None]:
    """Let torch raise, inside this context, where it would wait for the CUDA device."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
