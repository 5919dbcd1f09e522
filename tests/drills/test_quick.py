"""Drills at their small scale, in a process of their own, which has no threads and may fork."""

from drills.processes import run_process


def test_nothing_fails() -> None:
    outcome = run_process("kill,rot,hostile", False, minutes=4)
    assert outcome.failures == []
    assert not outcome.crashed
