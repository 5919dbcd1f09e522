"""What one of several processes sends and holds in a step, where torch's fake process group has the others."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves

from collectives import Traffic, held_bytes, reduce_as_fake_groups_do
from gpt.config import OptimConfig
from gpt.device import Compute
from gpt.distributed import World
from gpt.distributed.process_group import ProcessGroup
from gpt.model import GPT
from gpt.system.environment import Launch
from gpt.system.progress import silent
from gpt.training.optimizers import build_optimizer
from gpt.training.parallel import parallelize
from gpt.training.signals import SignalWatch
from gpt.training.step import Stepper
from tiny import tiny_config

PROCESSES = 64
SHARED = {"n_embd": 64, "vocab_size": 64, "block_size": 64}
"""Numbers of rows that all processes share equally."""
COUNTERS = 4 + 8 + 8
"""Bytes of the loss, the number of tokens and the signals, which all processes add up."""


class FakeProcesses(ProcessGroup):
    """Rank 0 of some processes, of which the others are fake."""

    def __init__(self) -> None:
        World.__init__(self, Launch(rank=0, size=PROCESSES))
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=PROCESSES)  # type: ignore[no-untyped-call]


@pytest.fixture
def world() -> Iterator[FakeProcesses]:
    try:
        yield FakeProcesses()
    finally:
        dist.destroy_process_group()


class CountedTraining:
    """Steps of one process over single sequences, with a model whose rows can be shared equally.

    Attributes:
        whole: bytes of all weights.
        matrices: bytes of those of the blocks, whose momentum Muon orthogonalizes.
        block: bytes of one block.
    """

    def __init__(self, world: World, method: str, optimizer: str, **changes: object) -> None:
        compute = Compute(torch.device("cpu"), torch.float32)
        self.model, self._number = GPT(tiny_config(**{**SHARED, **changes})), 0
        self.whole = 4 * sum(weight.numel() for weight in self.model.parameters())
        self.matrices = 4 * sum(weight.numel() for weight in self.model.h.parameters() if weight.dim() == 2)
        self.block = 4 * sum(weight.numel() for weight in self.model.h[0].parameters())
        forward, no_sync = parallelize(self.model, method, world, compute)  # type: ignore[arg-type]
        if method == "ddp":
            reduce_as_fake_groups_do(forward)  # type: ignore[arg-type]
        self._optimizer = build_optimizer(self.model, OptimConfig(name=optimizer), compute.device, compute.fast_dtype)  # type: ignore[arg-type]
        self._stepper = Stepper(
            self.model, self._optimizer, compute, 1.0, world=world, forward=forward, no_sync=no_sync
        )
        self._signals = SignalWatch(silent, world)

    def step(self, micro_batches: int = 1) -> Traffic:
        """Make one step, and return what it sent."""
        batch = (torch.zeros(1, 16, dtype=torch.int64), torch.zeros(1, 16, dtype=torch.int64))
        with Traffic(PROCESSES) as traffic:
            self._stepper.step(self._number, 1e-3, [batch] * micro_batches)
            self._signals.check()
        self._number += 1
        return traffic

    def held(self) -> list[int]:
        """Return the bytes of weights, of gradients and of the moments."""
        parameters = list(self.model.parameters())
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        entries = [optimizer.state for optimizer in self._optimizer.optimizers.values()]
        state = [leaf for leaf in tree_leaves([dict(entry) for entry in entries]) if isinstance(leaf, Tensor)]
        return [held_bytes(parameters), held_bytes(gradients), held_bytes([leaf for leaf in state if leaf.dim()])]  # type: ignore[arg-type]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_ddp_holds_everything_and_sends_gradients_once(
    world: FakeProcesses, optimizer: str, micro_batches: int
) -> None:
    training = CountedTraining(world, "ddp", optimizer)
    for _ in range(2):  # DDP divides its buckets anew after the first
        traffic = training.step(micro_batches)
    assert traffic.total("all-reduce") == training.whole + COUNTERS
    assert traffic.total("all-gather") == traffic.total("reduce-scatter") == 0
    moments = 2 * training.whole - (training.matrices if optimizer == "muon" else 0)
    assert training.held() == [training.whole, training.whole, moments]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_fsdp_holds_a_part_and_sends_weights_in_both_passes_of_each_micro_batch(
    world: FakeProcesses, optimizer: str, micro_batches: int
) -> None:
    training = CountedTraining(world, "fsdp", optimizer)
    traffic = training.step(micro_batches)
    momentum = training.matrices if optimizer == "muon" else 0
    assert traffic.total("reduce-scatter") == training.whole
    assert traffic.total("all-gather") == 2 * micro_batches * training.whole + momentum
    norms = 4 * len(list(training.model.parameters()))
    assert traffic.total("all-reduce") == norms + COUNTERS
    whole = [training.whole, training.whole, 2 * training.whole - momentum]
    assert training.held() == [nbytes // PROCESSES for nbytes in whole]


def test_fsdp_has_about_four_whole_blocks_at_a_time_and_whole_gradients_between_micro_batches(
    world: FakeProcesses,
) -> None:
    training = CountedTraining(world, "fsdp", "adamw", n_embd=256, n_layer=8)
    training.step()
    one, three = (training.step(micro_batches).peak - sum(training.held()) for micro_batches in (1, 3))
    assert 4 * training.block < one < 4.5 * training.block
    assert three > training.whole
