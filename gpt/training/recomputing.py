"""Activation checkpointing: blocks keep their inputs only, and run again in the backward pass (Chen et al. 2016)."""

from types import MethodType
from typing import Any

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gpt.model import GPT


def checkpoint_activations(model: GPT) -> None:
    """Make every block of a model recompute its activations (1604.06174), with the dropout of its first pass.

    Losses and gradients stay the same to the last bit: of PyTorch's blocks, native or compiled. It comes before the
    model is sharded or compiled, so that weights are gathered once for both and torch.compile sees it.
    """
    for block in model.h:
        # a method of the block, not a closure, so that a copy of the block computes with its own weights
        block.forward = MethodType(_forward, block)


def _forward(block: Any, *arguments: Any) -> Tensor:
    result: Tensor = checkpoint(type(block).forward, block, *arguments, use_reentrant=False)
    return result
