"""How long tests wait for other threads and processes, and how many examples dear properties are tried with."""

from hypothesis import settings

PATIENCE = 240.0
"""Seconds for whatever should come: a limit against a hang, which measures nothing.

It takes a few at most, or some 20 on a busy machine. pytest's own limit, `timeout` in pyproject.toml, is longer, so
that a test says what it has waited for.
"""


def examples(share: float) -> settings:
    """Decorate a property whose examples are dear: it is tried with a share of the examples that others have."""
    return settings(max_examples=max(2, round(share * settings().max_examples)))
