"""Show a matrix in a terminal: as shaded cells with labels, or as numbers."""

import math
from collections.abc import Sequence

SHADES = " ░▒▓█"
GRAYS = (16, *range(232, 256), 231)
"""Shades of gray in the 256-color terminal palette, from black to white."""


def heat_map(matrix: Sequence[Sequence[float]], labels: Sequence[str], color: bool) -> str:
    """Return a heat map with a row per query and a column per key, each cell two characters wide.

    Args:
        matrix: square, with values from 0 to 1.
        labels: one for each row and column.
        color: whether to shade by color instead of characters.
    """
    from gpt.inspection.views.tokens import one_character

    width = max(len(label) for label in labels)
    head = " " * (width + 1) + "".join(f"{one_character(label)} " for label in labels)
    lines = [
        f"{label:>{width}} " + "".join(_cell(value, color) for value in row[: number + 1])
        for number, (label, row) in enumerate(zip(labels, matrix, strict=True))
    ]
    return "\n".join([head.rstrip(), *lines])


def _cell(value: float, color: bool) -> str:
    if color:
        return f"\x1b[48;5;{GRAYS[round(min(max(value, 0.0), 1.0) * (len(GRAYS) - 1))]}m  \x1b[0m"
    return SHADES[min(int(math.sqrt(value) * len(SHADES)), len(SHADES) - 1)] * 2  # the root keeps small weights visible


def numbers(matrix: Sequence[Sequence[float]], labels: Sequence[str]) -> str:
    """Return the same as numbers with three decimals, and the index of every row and column."""
    width = max(len(label) for label in labels)
    columns = range(len(labels))
    lines = [
        " " * (width + 6) + "".join(f"{column:>6}" for column in columns),
        " " * (width + 6) + "".join(f"{labels[column]:>6}" for column in columns),
    ]
    for number, (label, row) in enumerate(zip(labels, matrix, strict=True)):
        cells = "".join(f"{value:6.3f}" if column <= number else "     ." for column, value in enumerate(row))
        lines.append(f"{number:>5} {label:>{width}}{cells}")
    return "\n".join(lines)
