import pytest
import torch

from gpt.accounting import machine
from gpt.accounting.bandwidth import measure_bandwidth
from gpt.accounting.machine import measure_matmul_rate, peak_memory_bytes


def test_the_matmul_rate_counts_two_operations_per_multiply_add(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    monkeypatch.setattr(machine.time, "perf_counter", lambda: float(next(ticks)))  # every matmul takes one second
    assert measure_matmul_rate(torch.device("cpu"), torch.float32, size=10) == 2 * 10**3


@pytest.mark.parametrize(("rate", "size"), [(1e9, 512), (1e12, 2048), (1e6, 128)])
def test_the_matmul_rate_is_measured_in_bounded_time(monkeypatch: pytest.MonkeyPatch, rate: float, size: int) -> None:
    """With smaller matrices where the type is slow."""
    sizes: list[int] = []

    def time_matmul(where: torch.device, dtype: torch.dtype, rows: int, repeats: int) -> float:
        sizes.append(rows)
        return 2 * rows**3 / rate

    monkeypatch.setattr(machine, "_time_matmul", time_matmul)
    assert measure_matmul_rate(torch.device("cpu"), torch.bfloat16) == pytest.approx(rate)
    assert max(sizes) == sizes[-1] == size


@pytest.mark.parametrize("kind", ["cuda", "mps", "cpu"])
def test_a_clock_waits_for_the_device(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: waited.append("cuda"))
    monkeypatch.setattr(torch.mps, "synchronize", lambda: waited.append("mps"))
    machine.synchronize(torch.device(kind))
    assert waited == [kind] * (kind != "cpu")


def test_the_bandwidth_is_the_bytes_of_the_matrix_over_the_best_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0, 0, 9, 10, 10, 14, 15, 15, 17, 18, 18, 21, 22])  # products of 9, 4, 2 and 3 seconds
    monkeypatch.setattr(machine.time, "perf_counter", lambda: float(next(ticks)))
    assert measure_bandwidth(torch.device("cpu"), 3 * 4096 + 5, seconds=20) == 3 * 4096 / 2
    assert list(ticks) == []


def test_a_real_bandwidth_is_that_of_a_computer() -> None:
    assert 1e8 < measure_bandwidth(torch.device("cpu"), 8 << 20) < 1e13


def test_peak_memory_grows_with_what_is_held() -> None:
    before = peak_memory_bytes(torch.device("cpu"))
    held = torch.ones(before // 4 + (16 << 20), dtype=torch.float32)  # more than the process has ever held
    assert peak_memory_bytes(torch.device("cpu")) > before
    assert held.sum() > 0
