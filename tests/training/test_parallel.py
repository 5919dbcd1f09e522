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
from gpt.model import GPT
from gpt.system.device import Compute
from gpt.system.distributed import World
from gpt.system.distributed.process_group import ProcessGroup
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
        parallelism = parallelize(self.model, method, world, compute)  # type: ignore[arg-type]
        if method == "ddp":
            reduce_as_fake_groups_do(parallelism.forward)  # type: ignore[arg-type]
        self._optimizer = build_optimizer(self.model, OptimConfig(name=optimizer), compute.device, compute.fast_dtype)  # type: ignore[arg-type]
        self._stepper = Stepper(self.model, self._optimizer, compute, 1.0, parallelism=parallelism)
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


@pytest.mark.parametrize(("optimizer", "micro_batches"), [("adamw", 3), ("muon", 1)])
@pytest.mark.parametrize("method", ["ddp", "fsdp"])
def test_step_sends_and_holds_what_the_method_says(
    world: FakeProcesses, method: str, optimizer: str, micro_batches: int
) -> None:
    """DDP holds everything and sends gradients once; FSDP a part, and weights in both passes of each micro-batch."""
    training = CountedTraining(world, method, optimizer)
    for _ in range(2):  # DDP divides its buckets anew after the first
        traffic = training.step(micro_batches)
    momentum = training.matrices if optimizer == "muon" else 0
    whole = [training.whole, training.whole, 2 * training.whole - momentum]
    sent = [traffic.total(kind) for kind in ("all-reduce", "reduce-scatter", "all-gather")]
    if method == "ddp":
        assert sent == [training.whole + COUNTERS, 0, 0]
        assert training.held() == whole
    else:
        norms = 4 * len(list(training.model.parameters()))
        assert sent == [norms + COUNTERS, training.whole, 2 * micro_batches * training.whole + momentum]
        assert training.held() == [nbytes // PROCESSES for nbytes in whole]


def test_fsdp_has_about_four_whole_blocks_at_a_time_and_whole_gradients_in_between(world: FakeProcesses) -> None:
    training = CountedTraining(world, "fsdp", "adamw", n_embd=256, n_layer=8)
    training.step()
    one, three = (training.step(micro_batches).peak - sum(training.held()) for micro_batches in (1, 3))
    assert 4 * training.block < one < 4.5 * training.block
    assert three > training.whole
