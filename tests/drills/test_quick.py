"""Drills at their small scale, in a process of their own."""

import pytest

from drills.processes import run_process


@pytest.mark.parametrize("names", ["kill", "rot", "hostile"])
def test_nothing_fails(names: str) -> None:
    outcome = run_process(names, False, minutes=4)
    assert outcome.failures == []
    assert not outcome.crashed
