"""Tables of text cells, for a terminal and for a notebook."""

import html
from collections.abc import Sequence
from dataclasses import dataclass

Row = Sequence[str]
SIDES = {"<": "left", ">": "right"}
"""The sides of a cell in CSS, by their signs in Python's format strings."""
COLUMN_GAP = "  "


@dataclass(frozen=True, repr=False)
class Table:
    """A table of text cells, which shows itself: as text in a terminal, as HTML in a notebook."""

    title: str  # its contents, with units
    header: Row  # column names
    rows: Sequence[Row]
    align: str  # < or > for each column
    note: str = ""  # how to read it

    def __repr__(self) -> str:
        text = f"{self.title}\n{render_table(self.header, self.rows, self.align)}"
        if self.note:
            text += f"\n{self.note}"
        return text

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


def render_table(header: Row, rows: Sequence[Row], align: str) -> str:
    """Return a table as lines of text, each column as wide as its longest cell.

    Args:
        align: < or > for each column.
    """
    columns = zip(header, *rows, strict=True)
    widths = [max(len(cell) for cell in column) for column in columns]
    rule = ["-" * width for width in widths]
    lines = [_text_row(cells, align, widths) for cells in (header, rule, *rows)]
    return "\n".join(lines)


def _text_row(cells: Row, align: str, widths: Sequence[int]) -> str:
    padded = [
        f"{cell:{side}{width}}" for cell, side, width in zip(cells, align, widths, strict=True)
    ]
    return COLUMN_GAP.join(padded).rstrip()


def _html_row(tag: str, cells: Row, align: str) -> str:
    """Return a row of HTML; its tag is `th` or `td`."""
    parts = []
    for cell, side in zip(cells, align, strict=True):
        parts.append(f"<{tag} style='text-align:{SIDES[side]}'>{html.escape(cell)}</{tag}>")
    return f"<tr>{''.join(parts)}</tr>"
