"""Drills at their small scale, in processes of their own, which have no threads and may fork."""

import pytest

from drills.processes import Task, run_all


@pytest.mark.parametrize("name", ["kill", "signals", "hostile"])
def test_nothing_fails(name: str) -> None:
    ((_, outcome, _),) = run_all([Task(name, False)])
    assert outcome.failures == []
    assert not outcome.crashed
