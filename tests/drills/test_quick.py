"""Drills at their small scale, each in a process of its own."""

import pytest

from drills.frame import load
from drills.processes import run_process


@pytest.mark.parametrize("name", ["kill", "rot", "hostile"])
def test_nothing_fails(name: str) -> None:
    outcome = run_process(name, False, load(name).minutes)
    assert outcome.failures == []
    assert not outcome.crashed
