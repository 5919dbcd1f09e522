"""Tensors of which each process has a part: FSDP2's parameters, their gradients and their optimizer state.

The functions have the names of DTensor's methods. Each returns a tensor that is not sharded as it is.
"""

import sys
from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_sharded(tensor: object) -> "TypeGuard[DTensor]":
    """Return whether this is a DTensor; where nothing has imported that class, which is slow, there is none."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def to_local(tensor: Tensor) -> Tensor:
    """Return this process's part, in the same memory."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def from_local(part: Tensor, like: Tensor) -> Tensor:
    """Return the tensor of which every process gives its part, sharded as `like`."""
    if not is_sharded(like):
        return part
    return type(like).from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the whole tensor; all processes call this, and each gets a copy."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Return this process's part of a whole tensor, which every process has, as `like` is sharded."""
    if not is_sharded(like):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
