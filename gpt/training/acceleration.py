"""Faster blocks in training: by native kernels, or by torch.compile, which compiles once, since blocks are alike."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from gpt.config import RunConfig
from gpt.model import GPT
from gpt.native.training.block import use_native_blocks
from gpt.system.device import Compute, compile_unsupported_reason
from gpt.system.environment import Settings
from gpt.system.errors import DeviceError
from gpt.system.processor import Processor
from gpt.system.progress import Report


def use_native_kernels(model: GPT, run: RunConfig, compute: Compute, settings: Settings, report: Report) -> None:
    """Use native kernels if they are wanted and available; with `run.compile=true` only by their name."""
    if run.kernels == "native" and run.compile is True:
        raise DeviceError("run.compile is true, but torch does not compile native kernels; set run.kernels=torch")
    if run.kernels == "native" or (run.kernels == "auto" and run.compile is not True and compute.device.type == "cpu"):
        try:
            instructions = use_native_blocks(model, compute, settings, report)
            report(f"training blocks by native kernels ({instructions})")
        except DeviceError as error:
            if run.kernels == "native":
                raise DeviceError(f"run.kernels is native, but {error}; set run.kernels=auto or torch") from None
            report(f"training with PyTorch's operators: {error}")


def should_compile(choice: str | bool, device: torch.device, processor: Processor, report: Report) -> bool:
    """Return whether to compile; DeviceError: `choice` is True, and torch.compile does not work here.

    On a CPU without bfloat16 instructions `auto` means no: compiled blocks were no faster there than eager ones, and
    several times slower on a busy machine.
    """
    if choice is False or (choice == "auto" and device.type == "cpu" and processor.matmul_dtype == torch.float32):
        return False
    reason = compile_unsupported_reason(device)
    if reason is not None and choice is True:
        raise DeviceError(f"run.compile is true, but {reason}; set run.compile=auto or false")
    if reason is not None:
        report(f"not compiling: {reason}")
    return reason is None


def compile_blocks(model: GPT, trial: Callable[[], object], required: bool, report: Report) -> None:
    """Compile every block in place, and try it by a forward and a backward pass, whose gradients are dropped.

    On failure the model is left as it was, and a line is reported; DeviceError: it failed, and is `required`.
    """
    report("compiling: half a minute the first time, seconds when it is cached")
    device = next(model.parameters()).device
    try:
        for block in model.h:
            block.compile()
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            trial()
    except Exception as error:
        # a toolchain can raise anything, and the run works without it
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        if required:
            raise DeviceError(f"torch.compile failed: {reason}; set run.compile=false") from error
        for block in model.h:
            block._compiled_call_impl = None
        report(f"not compiling: {reason}")
    finally:
        model.zero_grad(set_to_none=True)


def is_compiled(model: GPT) -> bool:
    return any(block._compiled_call_impl is not None for block in model.h)


def without_compilation(model: GPT) -> AbstractContextManager[object]:
    """Run compiled blocks eagerly inside this context: a few passes are not worth compiling for their shapes."""
    return torch.compiler.set_stance("force_eager") if is_compiled(model) else nullcontext()
