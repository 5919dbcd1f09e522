"""Drills at their small scale, in processes of their own, which have no threads and may fork."""

import pytest

from drills.processes import Task


@pytest.mark.parametrize("names", ["kill", "signals", "rot,hostile"])
def test_nothing_fails(names: str) -> None:
    outcome, _ = Task(names, False).run()
    assert outcome.failures == []
    assert not outcome.crashed
