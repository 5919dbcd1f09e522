"""How long tests wait for other threads and processes, and how many examples expensive properties
are tried with.
"""

from hypothesis import settings

PATIENCE = 240.0
"""Seconds that a test waits for anything: a limit against a hang, which measures nothing.

Nothing takes more than a few seconds, or some 20 on a busy machine. pytest's own limit, `timeout`
in pyproject.toml, is longer, so that a test can say what it has waited for.
"""


def examples(share: float) -> settings:
    """Return a decorator for an expensive property, which is tried with this share of the usual
    number of examples.
    """
    count = round(share * settings().max_examples)
    return settings(max_examples=max(2, count))
