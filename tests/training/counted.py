"""A training of which this process is one of many: torch's fake process group has the others."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves

from collectives import Traffic, held_bytes, reduce_as_fake_groups_do
from gpt.accounting.parallel import Method, ParallelStep
from gpt.config import ModelConfig, OptimConfig
from gpt.device import Compute
from gpt.distributed import World
from gpt.distributed.process_group import ProcessGroup
from gpt.environment import Launch
from gpt.model import GPT
from gpt.progress import silent
from gpt.training.optimizers import build_optimizer
from gpt.training.parallel import parallelize
from gpt.training.signals import SignalWatch
from gpt.training.step import Stepper


class FakeProcesses(ProcessGroup):
    """Rank 0 of some processes, of which the others are fake."""

    def __init__(self, number: int) -> None:
        World.__init__(self, Launch(rank=0, size=number))
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=number)  # type: ignore[no-untyped-call]


@contextmanager
def fake_processes(number: int) -> Iterator[FakeProcesses]:
    """Connect to fake processes within this context."""
    try:
        yield FakeProcesses(number)
    finally:
        dist.destroy_process_group()


class CountedTraining:
    """Steps of one process, with all that it holds and sends.

    Args:
        world: the processes.
        config: the model.
        optimizer: `adamw` or `muon`.
        method: `ddp` or `fsdp`.
        compute: device and dtype.
        is_fake: whether the other processes are fake.
    """

    def __init__(
        self, world: World, config: ModelConfig, optimizer: str, method: Method, compute: Compute, is_fake: bool
    ) -> None:
        torch.manual_seed(0)
        self.model, self._world = GPT(config), world
        forward, no_sync = parallelize(self.model, method, world, compute)
        if method == "ddp" and is_fake:
            reduce_as_fake_groups_do(forward)  # type: ignore[arg-type]
        self.optimizer = build_optimizer(self.model, OptimConfig(name=optimizer), compute.device, compute.fast_dtype)  # type: ignore[arg-type]
        self._stepper = Stepper(self.model, self.optimizer, compute, 1.0, world=world, forward=forward, no_sync=no_sync)
        self._signals = SignalWatch(silent, world)
        self._number = 0

    def step(self, micro_batches: int = 1) -> Traffic:
        """Make one step, and return what it sent."""
        batch = (torch.zeros(1, 16, dtype=torch.int64), torch.zeros(1, 16, dtype=torch.int64))
        with Traffic(self._world.size) as traffic:
            self._stepper.step(self._number, 1e-3, [batch] * micro_batches)
            self._signals.check()
        self._number += 1
        return traffic

    def held(self) -> list[int]:
        """Return the bytes of weights, of gradients and of the optimizer's state."""
        parameters = list(self.model.parameters())
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        entries = [optimizer.state for optimizer in self.optimizer.optimizers.values()]
        state = [leaf for leaf in tree_leaves([dict(entry) for entry in entries]) if isinstance(leaf, Tensor)]
        return [held_bytes(parameters), held_bytes(gradients), held_bytes(state)]  # type: ignore[arg-type]


def sent(traffic: Traffic) -> dict[str, list[int]]:
    """Return bytes and calls by operation."""
    return {operation: list(traffic.total(operation)) for operation in ("all-reduce", "all-gather", "reduce-scatter")}


def assert_as_predicted(found: dict[str, list[int]], held: list[int], predicted: ParallelStep) -> None:
    """Compare what a process sent and holds with the prediction."""
    for operation, (nbytes, calls) in found.items():
        expected = [part for part in predicted.traffic if part.operation == operation]
        assert nbytes == sum(part.nbytes for part in expected), operation
        if all(part.calls is not None for part in expected):
            assert calls == sum(part.calls or 0 for part in expected), operation
    assert held == [predicted.weights, predicted.gradients, predicted.optimizer]
