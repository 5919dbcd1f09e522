"""Hand-made cases; tests/distributed counts what the real processes hold and send."""

import pytest

from gpt.accounting.parallel import Collective, parallel_step
from gpt.accounting.published import PUBLISHED
from tiny import tiny_config

BLOCK = 4 * 32 * 32 + 2 * 32 * 128 + 2 * 32
"""Numbers in one block of the tiny model: four matrices of attention, two of the MLP, two norms."""
OUTSIDE = 23 * 32 + 16 * 32 + 32
"""Embeddings of 23 ids and 16 positions, and the final norm."""
TENSORS = 2 * 8 + 3


def sent(operation: str, nbytes: int, processes: int) -> int:
    return Collective("test", "update", operation, nbytes, 1).sent(processes)  # type: ignore[arg-type]


def test_a_ring_sends_all_but_a_processs_own_part_and_a_reduction_twice_that() -> None:
    assert sent("all-gather", 4000, 4) == 3000
    assert sent("reduce-scatter", 4000, 4) == 3000
    assert sent("all-reduce", 4000, 4) == 6000
    assert sent("all-reduce", 4000, 1) == 0


def test_ddp_holds_everything_and_reduces_the_gradients() -> None:
    step = parallel_step(tiny_config(), "adamw", "ddp", 8)
    numbers = 2 * BLOCK + OUTSIDE
    assert (step.weights, step.gradients, step.whole) == (4 * numbers, 4 * numbers, 0)
    assert step.optimizer == 8 * numbers + 4 * TENSORS
    gradients, counters = step.traffic
    assert (gradients.operation, gradients.nbytes) == ("all-reduce", 4 * numbers)
    assert counters.nbytes == 20
    assert step.sent == 2 * 4 * numbers * 7 // 8 + 2 * 20 * 7 // 8
    assert parallel_step(tiny_config(), "adamw", "ddp", 8, micro_batches=4) == step


def test_fsdp_holds_a_part_and_sends_the_weights_twice_and_the_gradients_once() -> None:
    step = parallel_step(tiny_config(), "adamw", "fsdp", 8)
    block = BLOCK // 8
    outside = 3 * 32 + 2 * 32 + 4  # 23 rows in 8 parts: 3 rows each, the last part with padding
    assert step.weights == step.gradients == 4 * (2 * block + outside)
    assert step.optimizer == 2 * step.weights + 4 * TENSORS
    assert step.whole == 4 * 8 * (4 * block + outside)
    forward, backward, gradients, norms, _ = step.traffic
    assert forward.nbytes == backward.nbytes == gradients.nbytes == 8 * step.weights
    assert forward.calls == backward.calls == gradients.calls == 3
    assert norms.nbytes == 4 * TENSORS
    assert step.sent == 3 * 7 * step.weights + 2 * 4 * TENSORS * 7 // 8 + 2 * 20 * 7 // 8


def test_fsdp_gathers_for_every_micro_batch_and_keeps_whole_gradients_between_them() -> None:
    step = parallel_step(tiny_config(), "adamw", "fsdp", 8, micro_batches=3)
    forward, backward, gradients, *_ = step.traffic
    assert forward.nbytes == backward.nbytes == 3 * gradients.nbytes == 3 * 8 * step.weights
    assert (forward.calls, gradients.calls) == (9, 3)
    assert step.gradients == 4 * (2 * BLOCK + OUTSIDE)


def test_muon_has_one_moment_and_gathers_it_under_fsdp() -> None:
    matrices = 4 * 32 * 32 + 2 * 32 * 128
    step = parallel_step(tiny_config(), "muon", "fsdp", 4)
    (moments,) = (collective for collective in step.traffic if collective.purpose == "Muon's momentum")
    assert (moments.operation, moments.nbytes, moments.calls) == ("all-gather", 4 * 2 * matrices, 12)
    other = 2 * 2 * 32 // 4 + 6 * 32 + 4 * 32 + 8
    assert step.optimizer == 4 * (2 * matrices // 4 + 2 * other + 7)
    deep = parallel_step(tiny_config(n_layer=8), "muon", "fsdp", 4)
    assert deep.whole == 4 * 6 * 8 * 4 * 32 * 32  # all matrices of attention
    assert len(parallel_step(tiny_config(), "muon", "ddp", 4).traffic) == 2


def test_more_processes_than_rows_leave_one_row_for_each() -> None:
    step = parallel_step(tiny_config(), "adamw", "fsdp", 64)
    block = 4 * 32 + 2 * 32 + 128 + 2  # a row of each matrix, but two of c_fc, which has 128; two norms
    assert step.weights == 4 * (2 * block + 32 + 32 + 1)


def test_one_process_sends_nothing() -> None:
    for method in ("ddp", "fsdp"):
        step = parallel_step(tiny_config(), "muon", method, 1)  # type: ignore[arg-type]
        assert (step.traffic, step.sent, step.whole) == ((), 0, 0)


@pytest.mark.parametrize(("name", "count"), [("gpt2", 124_439_808), ("gpt2-xl", 1_557_611_200)])
def test_sixteen_bytes_for_each_parameter_of_published_models(name: str, count: int) -> None:
    held = parallel_step(PUBLISHED[name], "adamw", "ddp", 64).held
    assert held == pytest.approx(16 * count, rel=1e-5)
    assert parallel_step(PUBLISHED[name], "adamw", "fsdp", 64).held == pytest.approx(16 * count / 64, rel=0.01)
