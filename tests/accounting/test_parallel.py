"""What is not counted in real steps, as tests/distributed and tests/training/test_parallel_accounting.py do."""

import pytest

from gpt.accounting.parallel import Collective, parallel_step
from gpt.accounting.published import PUBLISHED
from tiny import tiny_config


def sent(operation: str, nbytes: int, processes: int) -> int:
    return Collective("test", "update", operation, nbytes, 1).sent(processes)  # type: ignore[arg-type]


def test_a_ring_sends_all_but_a_processs_own_part_and_a_reduction_twice_that() -> None:
    assert sent("all-gather", 4000, 4) == 3000
    assert sent("reduce-scatter", 4000, 4) == 3000
    assert sent("all-reduce", 4000, 4) == 6000
    assert sent("all-reduce", 4000, 1) == 0


def test_one_process_sends_nothing() -> None:
    for method in ("ddp", "fsdp"):
        step = parallel_step(tiny_config(), "muon", method, 1)  # type: ignore[arg-type]
        assert (step.traffic, step.sent, step.whole) == ((), 0, 0)


@pytest.mark.parametrize(("name", "count"), [("gpt2", 124_439_808), ("gpt2-xl", 1_557_611_200)])
def test_sixteen_bytes_for_each_parameter_of_published_models(name: str, count: int) -> None:
    held = parallel_step(PUBLISHED[name], "adamw", "ddp", 64).held
    assert held == pytest.approx(16 * count, rel=1e-5)
    assert parallel_step(PUBLISHED[name], "adamw", "fsdp", 64).held == pytest.approx(16 * count / 64, rel=0.01)
