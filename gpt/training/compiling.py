"""Compiling the blocks of a model, each by itself: they share one program, compiled once."""

from collections.abc import Callable

import torch

from gpt.errors import DeviceError
from gpt.model import GPT
from gpt.report import Report


def compile_blocks(model: GPT, trial: Callable[[], object], required: bool, report: Report) -> None:
    """Compile every block in place and try it; where that fails, leave the model as it was.

    Args:
        model: parameter names stay as they are.
        trial: one forward and backward pass; its randomness and gradients are undone.
        required: a failure is an error, not a message.

    Raises:
        DeviceError: it failed and is required.
    """
    try:
        for block in model.h:
            block.compile()
        with torch.random.fork_rng():
            trial()
    except Exception as error:  # whatever a toolchain can throw must not end a run that works without it
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        if required:
            raise DeviceError(f"torch.compile failed: {reason}; set run.compile=false") from error
        for block in model.h:
            block._compiled_call_impl = None
        report(f"not compiling: {reason}")
    finally:
        model.zero_grad(set_to_none=True)
