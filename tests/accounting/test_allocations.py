import pytest
import torch
from torch import nn

from gpt.accounting.allocations import AllocationMode, Rehearsal


def test_a_storage_counts_once_until_it_is_freed() -> None:
    with AllocationMode() as mode:
        a = torch.ones(10)
        assert mode.live == 40
        view = a.view(2, 5)[1]
        alias = a.detach()
        assert mode.live == 40
        del a
        assert mode.live == 40  # the views hold it
        del view, alias
        assert mode.live == 0
    assert mode.peak == 40


def test_the_peak_is_the_most_at_once() -> None:
    with AllocationMode() as mode:
        a = torch.ones(100)
        b = a + 1
        del a
        c = b * 2  # two at once again, three never
        assert mode.live == mode.peak == 800
        d = c[:1] + 1
        assert (mode.live, mode.peak) == (804, 804)
        del b, c
        e = d + 1
        assert (mode.live, mode.peak) == (8, 804)
        del d, e
        mode.restart_peak()
        assert mode.peak == 0
        torch.ones(5)
        assert (mode.live, mode.peak) == (0, 20)


def test_bytes_are_those_of_new_storages_with_their_gaps() -> None:
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


def test_a_backward_pass_is_counted_and_gradients_stay() -> None:
    weight = nn.Parameter(torch.ones(6, 4))
    x = torch.ones(3, 4)
    with AllocationMode() as mode:
        hidden = x @ weight.T  # (3, 6)
        hidden.square().sum().backward()
        assert weight.grad is not None
        assert mode.live == hidden.nbytes + weight.grad.nbytes == 4 * (18 + 24)
        assert mode.peak > mode.live


def test_fake_tensors_count_what_real_ones_do() -> None:
    def work() -> torch.Tensor:
        model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4))
        model(torch.ones(5, 8)).sum().backward()
        return model[0].weight

    with AllocationMode() as real:
        kept = work()
    with Rehearsal() as rehearsal:
        kept_fake = work()
    assert rehearsal.allocations.peak == real.peak > 0
    assert rehearsal.allocations.live == real.live == kept.nbytes * 2 == kept_fake.nbytes * 2


def test_a_rehearsal_allocates_nothing_and_reads_zeros() -> None:
    with Rehearsal() as rehearsal:
        huge = torch.zeros(1 << 40, dtype=torch.float64)  # 8 TiB
        assert int(huge.max()) == 0
        assert rehearsal.allocations.live == 8 << 40


def test_a_rehearsal_ends_where_an_error_leaves_it() -> None:
    with pytest.raises(RuntimeError), Rehearsal():
        torch.ones(2) @ torch.ones(3)
    assert (torch.ones(2) + 1).tolist() == [2.0, 2.0]
