"""Training and waiting on a CUDA device, for the tests that have one."""

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
    model: GPT, device: torch.device, dtype: torch.dtype = torch.float32, kind: type[Stepper] = Stepper, **optim: object
) -> Stepper:
    """Of a model that is on the device; float32 is exact, without TF32."""
    config = OptimConfig.model_validate({"learning_rate": 3e-3, "min_lr": 0.0, "warmup_steps": 0, **optim})
    fast = torch.bfloat16 if device.type == "cuda" else torch.float32
    objective = Objective(0.9, mtp_weights=(0.5, 0.25), mtp_steps=12)
    return kind(model, build_optimizer(model, config, device, fast), Compute(device, dtype), 1.0, objective)


@contextmanager
def no_synchronization(device: torch.device) -> Iterator[None]:
    """Within, torch raises where it would wait for the CUDA device."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
