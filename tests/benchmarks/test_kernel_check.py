"""Kernels beside torch's operators: what is timed computes, and what is far too slow is named."""

import argparse
import itertools
from collections.abc import Callable

import pytest
import torch
from native_support import needs_compiler
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import kernel_cases, kernel_check
from benchmarks.kernel_cases import Case, decoding_cases, optimizer_case, training_cases
from benchmarks.kernel_check import best_seconds, run
from gpt.environment import read_settings
from gpt.kernels.training.bindings import KERNELS, Kernels, load_kernels
from gpt.processor import supported_processors

ARGUMENTS = argparse.Namespace(json=None)


def test_the_fastest_call_counts_after_one_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    durations = itertools.chain([0.001, 0.5, 0.2], itertools.repeat(0.3))

    def call() -> None:
        nonlocal now
        now += next(durations)

    assert best_seconds(call, lambda: now) == pytest.approx(0.2)
    assert now == pytest.approx(0.001 + 0.5 + 0.2 + 0.3)


@pytest.mark.parametrize(("seconds", "code"), [(0.001, 0), (0.01, 1)])
def test_a_kernel_that_is_ten_times_slower_ends_with_1_and_its_name(
    seconds: float, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ours() -> None: ...

    def reference() -> None: ...

    def timed(call: Callable[[], object]) -> float:
        return seconds if call is ours else 0.001

    monkeypatch.setattr(kernel_cases, "all_cases", lambda report: [Case("norm", ours, reference, 3.0)])
    monkeypatch.setattr(kernel_check, "best_seconds", timed)
    threads = torch.get_num_threads()
    assert run(ARGUMENTS) == code
    torch.set_num_threads(threads)
    assert ("too slow: norm takes 10.0 times" in capsys.readouterr().err) == bool(code)


@needs_compiler
def test_every_training_kernel_is_timed_beside_what_it_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cases, "ROWS", 16)
    called: set[str] = set()
    call = Kernels.call
    monkeypatch.setattr(Kernels, "call", lambda self, name, **rest: called.add(name) or call(self, name, **rest))
    for dtype in dict.fromkeys((torch.float32, supported_processors()[0].matmul_dtype)):
        kernels = load_kernels(dtype, read_settings())
        for case in training_cases(kernels):
            ours, theirs = case.ours(), case.reference()
            if case.name == "dropout":
                continue
            both = zip(*(side if isinstance(side, tuple) else (side,) for side in (ours, theirs)), strict=True)
            assert all(one.shape == other.shape for one, other in both), case.name
        missing = {"weight_gradient"} if dtype == torch.float32 else set()
        assert called | {"add_forward"} >= KERNELS.keys() - missing
        called.discard("weight_gradient")


def test_muon_is_timed_against_as_many_flops() -> None:
    case = optimizer_case(torch.float32)
    flops = FlopCounterMode(display=False)
    counts = []
    for side in (case.ours, case.reference):
        with flops:
            side()
        counts.append(flops.get_total_flops())
    assert counts[0] == counts[1]


@needs_compiler
def test_each_kind_of_weights_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cases, "DECODED", 2)
    cases = list(decoding_cases())
    assert [case.name for case in cases[:2]] == ["decoding, float32, batch 1", "decoding, float32, batch 32"]
    assert len(cases) == 8
    for case in cases:
        case.ours()
        case.reference()
