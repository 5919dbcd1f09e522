"""How a part of the package speaks to the user without knowing where the words go."""

from collections.abc import Callable

Report = Callable[[str], None]
"""Takes one line for the user."""


def silent(line: str) -> None:
    """Say nothing."""
