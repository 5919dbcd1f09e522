import math

import pytest
import torch

from gpt.errors import NonFiniteError
from gpt.training.step import NonFiniteGuard

GOOD = torch.tensor(1.0)
BAD = [math.nan, math.inf, -math.inf]


@pytest.fixture
def guard() -> NonFiniteGuard:
    return NonFiniteGuard(torch.device("cpu"))


def test_finite_steps_pass(guard: NonFiniteGuard) -> None:
    for step in range(5):
        guard.observe(step, GOOD, torch.tensor(0.0))
    guard.check()
    assert guard.blocked == 0


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_value_that_is_not_finite_blocks_and_names_its_step(guard: NonFiniteGuard, where: str, value: float) -> None:
    bad = torch.tensor(value)
    guard.observe(7, *((bad, GOOD) if where == "loss" else (GOOD, bad)))
    assert guard.blocked == 1
    with pytest.raises(NonFiniteError, match="not finite at step 7; the update was not made") as error:
        guard.check()
    assert error.value.exit_code == 3


def test_the_first_bad_step_is_the_one_that_is_named_however_many_follow(guard: NonFiniteGuard) -> None:
    for step, loss in enumerate([1.0, 2.0, math.nan, 1.0, math.inf, 1.0]):
        guard.observe(step, torch.tensor(loss), GOOD)
        assert guard.blocked == (step >= 2)
    with pytest.raises(NonFiniteError, match="step 2;"):
        guard.check()


def test_step_zero_can_be_the_bad_one(guard: NonFiniteGuard) -> None:
    guard.observe(0, torch.tensor(math.nan), GOOD)
    with pytest.raises(NonFiniteError, match="step 0;"):
        guard.check()


def test_reads_are_free_on_a_cpu_only() -> None:
    assert NonFiniteGuard(torch.device("cpu")).reads_are_free
    assert not NonFiniteGuard(torch.device("meta")).reads_are_free
