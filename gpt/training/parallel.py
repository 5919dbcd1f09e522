"""Spread a training over processes: the one place that knows DistributedDataParallel."""

import math
from collections.abc import Callable, Iterator
from inspect import signature
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gpt.config import Config, TrainConfig
from gpt.model import GPT
from gpt.system.device import Compute
from gpt.system.distributed import World
from gpt.system.errors import ConfigError
from gpt.training.loss import IGNORE, Batch, Evaluation, batch_losses
from gpt.training.step import Parallelism


def check_parallel(config: Config, world: World) -> None:
    """Raise ConfigError if processes cannot share micro-batches equally."""
    batch_size = config.train.batch_size
    if batch_size % world.size:
        raise ConfigError(
            f"train.batch_size is {batch_size}, which {world.size} processes cannot share equally; "
            f"use a multiple of {world.size}, or another number of processes"
        )


def rows_of_process(config: TrainConfig, world: World) -> Tensor | None:
    """Return which sequences of a step are this process's: an equal part of every micro-batch; None: all."""
    if world.size == 1:
        return None
    rows = torch.arange(config.sequences)
    return rows.view(config.grad_accum_steps, world.size, -1)[:, world.rank].flatten()


def parallelize(model: GPT, world: World, compute: Compute) -> Parallelism:
    """Move a model to the device and let its processes train it together, with the weights of rank 0.

    Every process keeps all parameters, and gradients are averaged during the backward pass (DDP, Li et al. 2020,
    2006.15704).
    """
    if world.size == 1:
        return Parallelism(world, model.to(compute.device))
    # in torch 2.13
    renamed = "forward_sync_buffers" in signature(DistributedDataParallel).parameters
    # tables, which do not change
    buffers = {"forward_sync_buffers" if renamed else "broadcast_buffers": False}
    replica = DistributedDataParallel(model.to(compute.device), gradient_as_bucket_view=True, **buffers)  # type: ignore[arg-type]
    return Parallelism(world, replica, replica.no_sync)


def evaluate_together(
    world: World, model: nn.Module, batches: Iterator[Batch], compute: Compute, poll: Callable[[], None]
) -> Evaluation:
    """Compute what `gpt.training.loss.evaluate` does, each process whole batches of its own.

    Their number does not change the result, to the last bit.
    """
    parts = world.gather(batch_losses(model, _share(batches, world), compute, poll))
    tokens = sum(count for _, count in parts)
    return Evaluation(math.fsum(loss for losses, _ in parts for loss in losses) / tokens, tokens)


def _share(batches: Iterator[Batch], world: World) -> Iterator[Batch]:
    """Yield every world_size-th batch, and one without targets where too few are left for all processes."""
    while turn := list(islice(batches, world.size)):
        inputs, targets = turn[min(world.rank, len(turn) - 1)]
        # the forward pass may need all processes
        yield inputs, targets if world.rank < len(turn) else torch.full_like(targets, IGNORE)
