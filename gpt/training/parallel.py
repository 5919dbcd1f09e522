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
    """Return the indices of the sequences of a step that this process reads, (R,) int64.

    None means that it reads all of them. Every process reads an equal part of every micro-batch, so
    that the micro-batches of a step are the same for any number of processes.
    """
    if world.size == 1:
        return None
    rows = torch.arange(config.sequences)
    # Each micro-batch has one part for each process. The shape is
    # (micro-batches, processes, sequences of a process in a micro-batch).
    by_rank = rows.view(config.grad_accum_steps, world.size, -1)
    return by_rank[:, world.rank].flatten()


def parallelize(model: GPT, world: World, compute: Compute) -> Parallelism:
    """Move a model to the device, and let the processes train it together from rank 0's weights.

    Every process has all parameters, and gradients are averaged during the backward pass (DDP, Li
    et al. 2020, 2006.15704).
    """
    model.to(compute.device)
    if world.size == 1:
        return Parallelism(world, model)
    # By default DDP sends the buffers of rank 0 in each step. Those of a GPT are position tables,
    # which do not change. Since torch 2.13 the option for this has another name.
    option = "broadcast_buffers"
    if "forward_sync_buffers" in signature(DistributedDataParallel).parameters:
        option = "forward_sync_buffers"
    buffer_options: dict[str, Any] = {option: False}
    # DDP collects gradients in buckets, and sends a bucket at a time. Gradients that are views of
    # the buckets need no memory of their own.
    replica = DistributedDataParallel(model, gradient_as_bucket_view=True, **buffer_options)
    return Parallelism(world, replica, replica.no_sync)


def evaluate_together(
    world: World,
    model: nn.Module,
    batches: Iterator[Batch],
    compute: Compute,
    poll: Callable[[], None],
) -> Evaluation:
    """Compute the result of `gpt.training.loss.evaluate`, with the batches shared among processes.

    Every bit of the result is the same for any number of processes: a batch is never divided among
    processes, and `fsum` does not depend on the order in which the losses of the batches are added.
    """
    own_losses = batch_losses(model, _share(batches, world), compute, poll)
    all_losses: list[float] = []
    total_targets = 0
    for losses, num_targets in world.gather(own_losses):
        all_losses += losses
        total_targets += num_targets
    return Evaluation(math.fsum(all_losses) / total_targets, total_targets)


def _share(batches: Iterator[Batch], world: World) -> Iterator[Batch]:
    """Yield the batches of this process: one of every `world.size` batches.

    All processes get the same number of batches, since they may communicate in the forward pass. If
    too few batches are left at the end, some processes get a batch without targets, with a loss of
    0.
    """
    while True:
        group = list(islice(batches, world.size))  # one batch for each process
        if not group:
            return
        if world.rank < len(group):
            yield group[world.rank]
        else:
            # This batch is computed like any other, but none of its targets counts.
            inputs, targets = group[-1]
            yield inputs, torch.full_like(targets, IGNORE)
