"""Bytes that each of several processes holds and sends in a training step, under DDP and under FSDP2.

DDP keeps a whole model in every process and averages gradients (Li et al. 2020, 2006.15704). FSDP2 shards weights,
gradients and optimizer state, and gathers the weights of a block when they are needed (Zhao et al. 2023, 2304.11277).
"""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from gpt.accounting.parameters import NamedTensor, count_parameters
from gpt.config import ModelConfig

Method = Literal["ddp", "fsdp"]
Operation = Literal["all-reduce", "all-gather", "reduce-scatter"]
Phase = Literal["forward", "backward", "update"]
FLOAT32 = 4
"""Bytes of a number: weights, gradients and optimizer state are float32, whatever the dtype of the matmuls."""
COUNTED = ("adamw", "muon")
"""Optimizers whose state is counted."""


@dataclass(frozen=True)
class Collective:
    """What a step sends for one purpose."""

    purpose: str
    phase: Phase  # the part of a step during which, or in which, it is sent
    operation: Operation  # all processes reduce, gather or scatter
    nbytes: int  # of all whole tensors in one step: those reduced, those gathered, or those to scatter
    calls: int | None  # number of calls in one step; None where torch chooses it, as for the buckets of DDP

    def sent(self, processes: int) -> int:
        """Return the bytes that each process sends in a ring, the least where all links are equal.

        A reduction passes every part around twice, once to add it up and once to spread the sum (Patarasuk and Yuan
        2009, doi 10.1016/j.jpdc.2008.09.002).
        """
        rounds = 2 if self.operation == "all-reduce" else 1
        return rounds * self.nbytes * (processes - 1) // processes


@dataclass(frozen=True)
class ParallelStep:
    """One training step of one of several processes; of shards, those of rank 0, which has the largest."""

    method: Method
    processes: int  # their number N
    weights: int  # bytes of float32 weights held all the time
    optimizer: int  # bytes of the optimizer's state
    gradients: int  # bytes of gradients; DDP holds them all the time, in its buckets
    whole: int  # about the most bytes of whole weights, gradients and buffers that FSDP2 holds for a moment
    traffic: tuple[Collective, ...]

    @property
    def held(self) -> int:
        return self.weights + self.optimizer + self.gradients

    @property
    def sent(self) -> int:
        return sum(collective.sent(self.processes) for collective in self.traffic)


def parallel_step(
    config: ModelConfig, optimizer: str, method: Method, processes: int, micro_batches: int = 1
) -> ParallelStep:
    """Count what a process holds and sends in a training step.

    Args:
        optimizer: `adamw` or `muon`; the state of another one is not counted.
        micro_batches: number in one step. Between them DDP sends nothing; FSDP2 gathers weights for each, and keeps
            whole gradients.
    """
    tensors = count_parameters(config).tensors
    parts = 1 if method == "ddp" else processes
    weights = sum(_shard(tensor, parts) for tensor in tensors)
    adamw = [tensor for tensor in tensors if not _is_muon(tensor, optimizer)] if optimizer in COUNTED else []
    matrices = [tensor for tensor in tensors if _is_muon(tensor, optimizer)]
    moments = sum(2 * _shard(tensor, parts) for tensor in adamw) + sum(_shard(tensor, parts) for tensor in matrices)
    counters = len(adamw)  # AdamW counts the steps of each tensor
    whole = sum(tensor.count for tensor in tensors)
    return ParallelStep(
        method,
        processes,
        FLOAT32 * weights,
        FLOAT32 * (moments + counters),
        FLOAT32 * (weights if micro_batches == 1 else whole),
        FLOAT32 * (_whole(tensors, optimizer, processes) if parts > 1 else 0),
        () if processes == 1 else _traffic(tensors, optimizer, method, processes, micro_batches),
    )


def _traffic(
    tensors: tuple[NamedTensor, ...], optimizer: str, method: Method, processes: int, micro_batches: int
) -> tuple[Collective, ...]:
    counters = Collective("loss, number of tokens, signals", "update", "all-reduce", 4 + 8 + 8, 3)
    if method == "ddp":
        gradients = FLOAT32 * sum(tensor.count for tensor in tensors)
        return Collective("gradients", "backward", "all-reduce", gradients, None), counters
    groups = len({_group(tensor) for tensor in tensors})
    padded = FLOAT32 * processes * sum(_shard(tensor, processes) for tensor in tensors)
    matrices = [tensor for tensor in tensors if _is_muon(tensor, optimizer)]
    updates = FLOAT32 * processes * sum(_shard(matrix, processes) for matrix in matrices)
    return (
        Collective("weights, forward", "forward", "all-gather", micro_batches * padded, micro_batches * groups),
        Collective("weights, backward", "backward", "all-gather", micro_batches * padded, micro_batches * groups),
        Collective("gradients", "backward", "reduce-scatter", padded, groups),
        *([Collective("Muon's momentum", "update", "all-gather", updates, len(matrices))] if matrices else []),
        Collective("gradient norms", "update", "all-reduce", FLOAT32 * len(tensors), 1),
        counters,
    )


def _whole(tensors: tuple[NamedTensor, ...], optimizer: str, processes: int) -> int:
    """Return about the most numbers of whole tensors at a time.

    In the backward pass of a block: its weights, those of the next one, its gradients and the buffer from which they
    are sent, beside the weights outside the blocks. At its end: a vocabulary's matrix, gradients from both of its
    uses, and the buffer. In the update: Muon's matrices of one shape, gathered, stacked, and in its iterations.
    """
    blocks, shapes, outside = Counter[str](), Counter[tuple[int, ...]](), []
    for tensor in tensors:
        size = processes * _shard(tensor, processes)
        if _group(tensor):
            blocks[_group(tensor)] += size
        else:
            outside.append(size)
        if _is_muon(tensor, optimizer):
            shapes[tensor.shape] += size
    return max(sum(outside) + 4 * max(blocks.values()), 4 * max(outside), 6 * max(shapes.values(), default=0))


def _shard(tensor: NamedTensor, parts: int) -> int:
    """Return the numbers in the largest of some parts; only whole rows are split."""
    rows = tensor.shape[0]
    return math.ceil(rows / parts) * (tensor.count // rows)


def _group(tensor: NamedTensor) -> str:
    """Return the block of a tensor, whose tensors are gathered together; an empty name outside the blocks."""
    parts = tensor.name.split(".")
    return parts[1] if parts[0] == "h" else ""


def _is_muon(tensor: NamedTensor, optimizer: str) -> bool:
    """Return whether Muon updates a tensor, which then has one moment, and AdamW the others."""
    return optimizer == "muon" and _group(tensor) != "" and len(tensor.shape) == 2
