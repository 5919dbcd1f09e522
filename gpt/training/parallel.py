"""Spread a training over processes: the one place that knows DistributedDataParallel."""

import math
from collections.abc import Callable, Iterator
from inspect import signature
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gpt.config import Config, TrainConfig
from gpt.data.tokens import IGNORE
from gpt.model import GPT
from gpt.system.device import Compute
from gpt.system.distributed import World
from gpt.system.errors import ConfigError
from gpt.training.loss import Batch, Evaluation, batch_losses
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
    """Return which sequences of a step this process reads, (R,) int64; None means all of them.

    They are an equal part of every micro-batch, so that the micro-batches of a step are the same
    for any number of processes.
    """
    if world.size == 1:
        return None
    rows = torch.arange(config.sequences)
    # (micro-batches, processes, sequences of a process in a micro-batch)
    by_rank = rows.view(config.grad_accum_steps, world.size, -1)
    return by_rank[:, world.rank].flatten()


def parallelize(model: GPT, world: World, compute: Compute) -> Parallelism:
    """Move a model to the device and let the processes train it together, with rank 0's weights.

    Every process keeps all parameters, and gradients are averaged during the backward pass (DDP, Li
    et al. 2020, 2006.15704).
    """
    model.to(compute.device)
    if world.size == 1:
        return Parallelism(world, model)
    # Buffers of a GPT are tables, which do not change: they need not be sent at each step.
    # torch 2.13 has renamed the option.
    option = "broadcast_buffers"
    if "forward_sync_buffers" in signature(DistributedDataParallel).parameters:
        option = "forward_sync_buffers"
    buffers: dict[str, Any] = {option: False}
    # As views of the buckets that are communicated, gradients take memory once and not twice.
    replica = DistributedDataParallel(model, gradient_as_bucket_view=True, **buffers)
    return Parallelism(world, replica, replica.no_sync)


def evaluate_together(
    world: World,
    model: nn.Module,
    batches: Iterator[Batch],
    compute: Compute,
    poll: Callable[[], None],
) -> Evaluation:
    """Compute what `gpt.training.loss.evaluate` does, with the batches shared among processes.

    The number of processes does not change a bit of the result: a batch is computed by one process
    as a whole, and `fsum` does not depend on the order of the losses.
    """
    own = batch_losses(model, _share(batches, world), compute, poll)
    all_losses: list[float] = []
    num_tokens = 0
    for losses, tokens in world.gather(own):
        all_losses += losses
        num_tokens += tokens
    return Evaluation(math.fsum(all_losses) / num_tokens, num_tokens)


def _share(batches: Iterator[Batch], world: World) -> Iterator[Batch]:
    """Yield every world_size-th batch.

    All processes get the same number of batches, since they may communicate in the forward pass.
    Where too few batches are left, some processes get a batch without targets, whose loss is 0.
    """
    while group := list(islice(batches, world.size)):  # one batch for each process
        if world.rank < len(group):
            yield group[world.rank]
        else:
            inputs, targets = group[-1]
            yield inputs, torch.full_like(targets, IGNORE)
