"""Faster training: by native kernels or by torch.compile."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from gpt.config import RunConfig
from gpt.model import GPT
from gpt.native.training.native_model import NativeModel, load_native_model
from gpt.system.device import Compute
from gpt.system.environment import Settings
from gpt.system.errors import DeviceError
from gpt.system.progress import Report


def load_wanted_kernels(
    model: GPT,
    run: RunConfig,
    compute: Compute,
    settings: Settings,
    report: Report,
    uncovered: str | None = None,
) -> NativeModel | None:
    """Return a model that computes by native kernels, if they are wanted and available, or None.

    Args:
        uncovered: a part of the training, other than the model, that the kernels do not compute;
            None if there is no such part.

    Raises:
        DeviceError: `run.kernels` is native, but `run.compile` is true or the kernels are not
            available.
    """
    is_required = run.kernels == "native"
    if is_required and run.compile:
        raise DeviceError(
            "run.compile is true, but torch does not compile native kernels; set run.kernels=torch"
        )
    # With `auto`, native kernels are used wherever they can be: they are for CPUs, and code that
    # torch compiles cannot call them.
    is_preferred = run.kernels == "auto" and not run.compile and compute.device.type == "cpu"
    if not is_required and not is_preferred:
        return None
    try:
        if uncovered is not None:
            raise DeviceError(f"the native kernels do not cover {uncovered}")
        native = load_native_model(model, compute, settings, report)
    except DeviceError as error:
        if is_required:
            raise DeviceError(
                f"run.kernels is native, but {error}; set run.kernels=auto or torch"
            ) from None
        # With `auto` the run goes on without the kernels.
        report(f"training with PyTorch's operators: {error}")
        return None
    dtype = str(compute.dtype).removeprefix("torch.")
    report(f"training by native kernels ({native.kernels.processor.name}, {dtype})")
    return native


def compile_blocks(model: GPT, trial: Callable[[], object], report: Report) -> None:
    """Compile every block in place, and try the blocks in a pass whose gradients are dropped.

    The blocks have the same code and shapes, so that torch compiles one of them and uses the result
    for all.

    Args:
        trial: makes a forward and a backward pass. torch compiles in the first pass, so that this
            trial shows an error of the compiler before the run begins.

    Raises:
        DeviceError: compilation failed.
    """
    report("compiling: half a minute the first time, seconds when it is cached")
    device = next(model.parameters()).device
    cuda_devices = [device] if device.type == "cuda" else []
    try:
        for block in model.h:
            block.compile()
        # The state of torch's random generators is restored at the end of this context, so that
        # the trial does not change the dropout of the run.
        with torch.random.fork_rng(devices=cuda_devices):
            trial()
    except Exception as error:  # the compiler can raise any error
        # An error without a message is described by its type.
        lines = str(error).strip().splitlines() or [type(error).__name__]
        reason = lines[0][:200]  # a compiler's message can be a whole command
        raise DeviceError(f"torch.compile failed: {reason}; set run.compile=false") from error
    model.zero_grad(set_to_none=True)  # drops the gradients of the trial


def without_compilation(model: GPT) -> AbstractContextManager[object]:
    """Return a context in which compiled blocks run eagerly.

    torch compiles again for every new shape, which takes longer than the few passes of an
    evaluation save.
    """
    # `Module.compile` sets this attribute, and torch has no public one that tells the same.
    is_compiled = any(block._compiled_call_impl is not None for block in model.h)
    if not is_compiled:
        # Without this return `set_stance` would import the compiler, which takes a second.
        return nullcontext()
    return torch.compiler.set_stance("force_eager")
