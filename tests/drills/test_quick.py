"""Drills at their small scale, in processes of their own, which have no threads and may fork."""

import pytest

from drills.processes import run_process


@pytest.mark.parametrize("names", ["kill", "signals", "rot,hostile"])
def test_nothing_fails(names: str) -> None:
    outcome = run_process(names, False)
    assert outcome.failures == []
    assert not outcome.crashed
