"""Tables of text cells, for a terminal and for a notebook."""

import html
from collections.abc import Sequence
from dataclasses import dataclass

Row = Sequence[str]
SIDES = {"<": "left", ">": "right"}


@dataclass(frozen=True, repr=False)
class Table:
    """A table of text cells, which shows itself: as text in a terminal, as HTML in a notebook."""

    title: str  # its contents, with units
    header: Row  # column names
    rows: Sequence[Row]
    align: str  # < or > for each column
    note: str = ""  # how to read it

    def __repr__(self) -> str:
        note = f"\n{self.note}" if self.note else ""
        return f"{self.title}\n{render_table(self.header, self.rows, self.align)}{note}"

    def _repr_html_(self) -> str:
        """Return a table whose styles are inline: they change nothing else in a notebook."""
        head = _html_row("th", self.header, self.align)
        body = "".join(_html_row("td", row, self.align) for row in self.rows)
        note = (
            f"<p style='margin:0.5em 0;white-space:pre-line'>{html.escape(self.note)}</p>"
            if self.note
            else ""
        )
        return (
            f"<p style='margin:0.5em 0'><b>{html.escape(self.title)}</b></p>"
            f"<table><thead>{head}</thead><tbody>{body}</tbody></table>{note}"
        )


def render_table(header: Row, rows: Sequence[Row], align: str) -> str:
    """Return columns of equal width, two spaces apart, under a ruled header; `align` has < or > for each."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(line, align, widths, strict=True)
        ).rstrip()
        for line in lines
    )


def _html_row(tag: str, cells: Row, align: str) -> str:
    styled = zip(cells, align, strict=True)
    return (
        "<tr>"
        + "".join(
            f"<{tag} style='text-align:{SIDES[side]}'>{html.escape(cell)}</{tag}>"
            for cell, side in styled
        )
        + "</tr>"
    )
