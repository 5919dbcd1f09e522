"""Tables of text cells, for a terminal and for a notebook."""

import html
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

Row = Sequence[str]
SIDES = {"<": "left", ">": "right"}
"""The sides of a cell in CSS, by their signs in Python's format strings."""
COLUMN_GAP = "  "
CONTINUATION = "  "
"""Begins a line that continues the row above it."""
COLOR_CODE = re.compile("\033\\[[0-9;]*m")
"""A code that changes the colors of a terminal, and takes no room there."""


@dataclass(frozen=True, repr=False)
class Table:
    """A table of text cells, which shows itself: as text in a terminal, as HTML in a notebook."""

    title: str  # its contents, with units
    header: Row  # column names
    rows: Sequence[Row]
    align: str  # < or > for each column
    note: str = ""  # how to read it

    def __repr__(self) -> str:
        return self.text()

    def text(self, width: int | None = None) -> str:
        """Return the table as lines of text of at most `width` characters; None: of any number."""
        parts = [
            fill(self.title, width),
            render_table(self.header, self.rows, self.align, width),
        ]
        if self.note:
            parts.append(fill(self.note, width))
        return "\n".join(parts)

    def _repr_html_(self) -> str:
        """Return the table as HTML, with styles in its tags: a style sheet would change others."""
        head = _html_row("th", self.header, self.align)
        body = "".join(_html_row("td", row, self.align) for row in self.rows)
        parts = [
            f"<p style='margin:0.5em 0'><b>{html.escape(self.title)}</b></p>",
            f"<table><thead>{head}</thead><tbody>{body}</tbody></table>",
        ]
        if self.note:
            style = "margin:0.5em 0;white-space:pre-line"  # the note has line breaks of its own
            parts.append(f"<p style='{style}'>{html.escape(self.note)}</p>")
        return "".join(parts)


def fill(text: str, width: int | None) -> str:
    """Return a text unchanged if its lines fit the width, or else as one paragraph that does.

    A word that is wider, such as the path of a run, stays whole, so that it can be copied.
    """
    if width is None or max(map(len, text.split("\n"))) <= width:
        return text
    words = " ".join(text.split())
    return textwrap.fill(words, width, break_long_words=False, break_on_hyphens=False)


def render_table(header: Row, rows: Sequence[Row], align: str, width: int | None = None) -> str:
    """Return a table as lines of text, each column as wide as its longest cell.

    In a table that is wider than `width`, each row takes several lines: the later ones are
    indented, and hold the columns for which the lines above have no room. A cell that is wider
    than a whole line is wrapped.

    Args:
        align: < or > for each column.
        width: the most characters of a line; None: any number.
    """
    columns = zip(header, *rows, strict=True)
    widths = [max(visible_length(cell) for cell in column) for column in columns]
    if width is not None:
        most = max(1, width - len(CONTINUATION))
        widths = [min(each, most) for each in widths]
    rule = ["-" * column_width for column_width in widths]
    parts = _split_columns(widths, width)
    lines = []
    for cells in (header, rule, *rows):
        for part in parts:
            indent = CONTINUATION if part.start else ""
            lines += _text_lines(cells[part], align[part], widths[part], indent)
    return "\n".join(lines)


def _split_columns(widths: Sequence[int], width: int | None) -> list[slice]:
    """Return the columns of each line of a row, as slices that together hold all columns."""
    if width is None:
        return [slice(0, len(widths))]
    starts = [0]
    used = widths[0]
    for column, column_width in enumerate(widths[1:], start=1):
        used += len(COLUMN_GAP) + column_width
        if used > width:
            starts.append(column)
            used = len(CONTINUATION) + column_width
    ends = [*starts[1:], len(widths)]
    return [slice(start, end) for start, end in zip(starts, ends, strict=True)]


def _text_lines(cells: Row, align: str, widths: Sequence[int], indent: str) -> list[str]:
    """Return cells side by side: one line, or as many as the cell that is wrapped most."""
    wrapped = [_wrap(cell, width) for cell, width in zip(cells, widths, strict=True)]
    lines = []
    for line_cells in zip_longest(*wrapped, fillvalue=""):
        padded = map(_pad, line_cells, align, widths)
        lines.append(f"{indent}{COLUMN_GAP.join(padded)}".rstrip())
    return lines


def _wrap(cell: str, width: int) -> list[str]:
    """Return the lines of a cell; one that must be wrapped loses its colors."""
    if visible_length(cell) <= width:
        return [cell]
    return textwrap.wrap(COLOR_CODE.sub("", cell), width)


def _pad(cell: str, side: str, width: int) -> str:
    """Fill up a cell with spaces; Python's own formats would count the codes of its colors."""
    spaces = " " * (width - visible_length(cell))
    return cell + spaces if side == "<" else spaces + cell


def visible_length(text: str) -> int:
    """Return the number of characters that a terminal shows."""
    return len(COLOR_CODE.sub("", text))


def _html_row(tag: str, cells: Row, align: str) -> str:
    """Return a row of HTML; its tag is `th` or `td`."""
    parts = []
    for cell, side in zip(cells, align, strict=True):
        parts.append(f"<{tag} style='text-align:{SIDES[side]}'>{html.escape(cell)}</{tag}>")
    return f"<tr>{''.join(parts)}</tr>"
