"""What is measured: rates, bandwidth, memory of the process and of an allocator."""

import pytest
import torch
from torch import nn

from gpt.extras.accounting.allocations import AllocationMode, rehearsal
from gpt.system import machine
from gpt.system.machine import measure_matmul_rate

CPU = torch.device("cpu")


def test_matmul_rate_counts_two_operations_per_multiply_add(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = iter(range(100))
    # every matmul takes one second
    monkeypatch.setattr(machine.time, "perf_counter", lambda: float(next(ticks)))
    assert measure_matmul_rate(CPU, torch.float32, size=10) == 2 * 10**3


def test_storage_counts_once_until_it_is_freed() -> None:
    with AllocationMode() as mode:
        a = torch.ones(10)
        view = a.view(2, 5)[1]
        alias = a.detach()
        del a
        assert mode.live == 40  # the views hold it
        b = alias + 1
        assert (mode.live, mode.peak) == (80, 80)
        del view, alias, b
        assert (mode.live, mode.peak) == (0, 80)
        mode.restart_peak()
        torch.ones(5)
        assert (mode.live, mode.peak) == (0, 20)


def test_allocated_bytes_count_new_storages_and_their_gaps() -> None:
    before = torch.ones(100)
    with AllocationMode() as mode:
        before.add_(1)
        view = before[:50]
        assert mode.live == 0
        strided = torch.empty_strided((2,), (4,))
        assert (view.nbytes, strided.nbytes, mode.live) == (200, 8, 20)
        wide = torch.ones(1, 8).expand(100, 8)
        assert mode.live == 20 + 8 * 4
        copies = wide.contiguous(), before.clone()
        assert mode.live == 20 + 8 * 4 + sum(copy.nbytes for copy in copies)


def test_rehearsal_counts_what_real_tensors_take_in_both_passes() -> None:
    def work() -> torch.Tensor:
        model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4))
        model(torch.ones(5, 8)).sum().backward()
        return model[0].weight

    with AllocationMode() as real:
        kept = work()
    with rehearsal() as fake:
        kept_fake = work()
    assert fake.peak == real.peak > real.live
    assert fake.live == real.live == kept.nbytes * 2 == kept_fake.nbytes * 2


def test_rehearsal_allocates_nothing_and_ends_at_an_error() -> None:
    with rehearsal() as allocations:
        huge = torch.zeros(1 << 40, dtype=torch.float64)  # 8 TiB
        assert int(huge.max()) == 0
        assert allocations.live == 8 << 40
    with pytest.raises(RuntimeError), rehearsal():
        torch.ones(2) @ torch.ones(3)
    assert (torch.ones(2) + 1).tolist() == [2.0, 2.0]
