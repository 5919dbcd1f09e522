"""Faster blocks in training: by native kernels, or by torch.compile, which compiles once, since blocks are alike."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from gpt.config import RunConfig
from gpt.model import GPT
from gpt.native.training.block import use_native_blocks
from gpt.system.device import Compute
from gpt.system.environment import Settings
from gpt.system.errors import DeviceError
from gpt.system.progress import Report


def use_native_kernels(model: GPT, run: RunConfig, compute: Compute, settings: Settings, report: Report) -> None:
    """Use native kernels if they are wanted and available; with `run.compile=true` only by their name."""
    if run.kernels == "native" and run.compile:
        raise DeviceError("run.compile is true, but torch does not compile native kernels; set run.kernels=torch")
    if run.kernels == "native" or (run.kernels == "auto" and not run.compile and compute.device.type == "cpu"):
        try:
            instructions = use_native_blocks(model, compute, settings, report)
            report(f"training blocks by native kernels ({instructions})")
        except DeviceError as error:
            if run.kernels == "native":
                raise DeviceError(f"run.kernels is native, but {error}; set run.kernels=auto or torch") from None
            report(f"training with PyTorch's operators: {error}")


def compile_blocks(model: GPT, trial: Callable[[], object], report: Report) -> None:
    """Compile every block in place, and try it by a pass whose gradients are dropped; DeviceError: it failed."""
    report("compiling: half a minute the first time, seconds when it is cached")
    device = next(model.parameters()).device
    try:
        for block in model.h:
            block.compile()
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            trial()
    except Exception as error:  # a toolchain can raise anything
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise DeviceError(f"torch.compile failed: {reason}; set run.compile=false") from error
    model.zero_grad(set_to_none=True)


def without_compilation(model: GPT) -> AbstractContextManager[object]:
    """Run compiled blocks eagerly inside this context: a few passes are not worth compiling for their shapes."""
    is_compiled = any(block._compiled_call_impl is not None for block in model.h)
    return torch.compiler.set_stance("force_eager") if is_compiled else nullcontext()
