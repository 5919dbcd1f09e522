"""The table of docs/reliability.md that drills write."""

import re

BEGIN, END = "<!-- written by make drills: begin -->", "<!-- written by make drills: end -->"
HEAD = ("| drill | what it shows | figures | processor |", "|---|---|---|---|")
_ROW = re.compile(r"\| ([a-z_]+) \|")


def update(page: str, rows: dict[str, tuple[str, str, str]], order: tuple[str, ...]) -> str:
    """Return the page with new rows in its table; rows of other drills stay.

    Args:
        page: the text of the page, with both markers.
        rows: promise, figures and processor by the name of the drill.
        order: names in the order of the table; a row of any other name is dropped.
    """
    before, begin, rest = page.partition(BEGIN)
    table, end, after = rest.partition(END)
    assert begin, f"the page has no {BEGIN}"
    assert end, f"the page has no {END}"
    lines = {match[1]: line for line in table.splitlines() if (match := _ROW.match(line)) and match[1] != "drill"}
    lines |= {name: f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()}
    return "\n".join((before + BEGIN, *HEAD, *(lines[name] for name in order if name in lines), END + after))
