"""Write Markdown for pages and command lines: tables and shapes."""

from collections.abc import Sequence


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], align: str = "") -> str:
    """Return a table without a line break at its end.

    The indentation of a cell is kept, and a | in it is escaped; `align` has < or > for each column, or nothing.
    """
    rule = ["---:" if side == ">" else "---" for side in align] or ["---"] * len(header)
    lines = [map(_cell, header), rule, *(map(_cell, row) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def times(shape: Sequence[int]) -> str:
    """Return a shape such as `1×7×64`."""
    return "×".join(map(str, shape))


def _cell(text: str) -> str:
    stripped = text.lstrip(" ")
    return "&nbsp;" * (len(text) - len(stripped)) + stripped.replace("|", "\\|")
