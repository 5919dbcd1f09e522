"""How long tests wait for other threads and processes: a limit against a hang, which measures nothing."""

PATIENCE = 240.0
"""Seconds for whatever should come. It takes a few at most, or some 20 on a busy machine.

pytest's own limit, `timeout` in pyproject.toml, is longer, so that a test says what it has waited for.
"""
