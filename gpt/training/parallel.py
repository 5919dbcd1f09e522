"""Spread a model over processes: the one place that knows DistributedDataParallel and FSDP2."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from inspect import signature

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gpt.config import Config, TrainConfig
from gpt.device import Compute
from gpt.distributed import World
from gpt.errors import ConfigError
from gpt.model import GPT


def check_parallel(config: Config, world: World) -> None:
    """Check that several processes can train with a configuration.

    Raises:
        ConfigError: they cannot share a micro-batch equally, or none has the whole model that is asked for.
    """
    batch_size = config.train.batch_size
    if batch_size % world.size:
        raise ConfigError(
            f"train.batch_size is {batch_size}, which {world.size} processes cannot share equally; "
            f"use a multiple of {world.size}, or another number of processes"
        )
    if world.size > 1 and config.run.parallel == "fsdp" and config.train.attention_interval:
        raise ConfigError(
            "train.attention_interval needs the whole model in one process; set it to 0, or run.parallel=ddp"
        )


def rows_of_process(config: TrainConfig, world: World) -> Tensor | None:
    """Return which sequences of a step are this process's: an equal part of every micro-batch; None: all."""
    if world.size == 1:
        return None
    rows = torch.arange(config.batch_size * config.grad_accum_steps)
    return rows.view(config.grad_accum_steps, world.size, -1)[:, world.rank].flatten()


@dataclass(frozen=True)
class ParallelModel:
    """A model as training calls it.

    Attributes:
        forward: token ids (B, T) of this process -> logits; its backward pass averages gradients over processes.
        accumulating: returns a context whose backward passes keep gradients to themselves.
    """

    forward: nn.Module
    accumulating: Callable[[], AbstractContextManager[None]] = nullcontext


def parallelize(model: GPT, method: str, world: World, compute: Compute) -> ParallelModel:
    """Move a model to the device and let its processes train it together, with the weights of rank 0.

    With FSDP2 its parameters become sharded, in place, one block after another. Under DDP (Li et al. 2020,
    2006.15704) every process keeps all of them.

    Args:
        model: the same in all processes.
        method: `ddp` or `fsdp`.
        world: the processes.
        compute: device of this process.
    """
    if world.size == 1:
        return ParallelModel(model.to(compute.device))
    if method == "fsdp":
        return _shard(model, world, compute)
    renamed = "forward_sync_buffers" in signature(DistributedDataParallel).parameters  # in torch 2.13
    buffers = {"forward_sync_buffers" if renamed else "broadcast_buffers": False}  # tables, which do not change
    replica = DistributedDataParallel(model.to(compute.device), gradient_as_bucket_view=True, **buffers)  # type: ignore[arg-type]
    return ParallelModel(replica, replica.no_sync)


def _shard(model: GPT, world: World, compute: Compute) -> ParallelModel:
    """Shard the parameters of every block, and those outside blocks (FSDP, Zhao et al. 2023, 2304.11277).

    The root is sharded again after its forward pass too: it would otherwise keep whole weights after an evaluation.
    """
    from torch.distributed.device_mesh import init_device_mesh  # slow to import
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(compute.device.type, (world.size,))
    for block in model.h:
        fully_shard(block, mesh=mesh, reshard_after_forward=True)
    sharded = fully_shard(model, mesh=mesh, reshard_after_forward=True)

    @contextmanager
    def accumulating() -> Iterator[None]:
        sharded.set_requires_gradient_sync(False)
        yield
        sharded.set_requires_gradient_sync(True)

    return ParallelModel(model, accumulating)
