"""`gpt explain lens`: what the model would predict after each layer."""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpt.cli.command import report
from gpt.cli.explain.options import add_text_options, check_range, open_text
from gpt.cli.shared_options import add_number
from gpt.cli.tables import print_view
from gpt.extras.inspection.rendering.tables import Table
from gpt.system.progress import announced

if TYPE_CHECKING:
    from gpt.extras.inspection.views.tokens import View

SUMMARY = "Show the logit lens: the most likely next token after each layer."
EXAMPLE = '--prompt "To be, or not to be" --position 5'

WIDTH = 60
"""Most tokens of one character in a table; longer texts continue in the next one."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_text_options(parser)
    position = "the most likely tokens after this position, by layer"
    parser.add_argument("--position", type=int, metavar="T", help=position)
    add_number(parser, "--top", "how many of them", 5)


def run(arguments: argparse.Namespace) -> None:
    loaded, idx, edits = open_text(arguments)
    if arguments.position is not None:
        check_range("--position", arguments.position, 0, len(idx) - 1, "positions of the prompt")

    from gpt.extras.inspection.views.lens import lens_view

    with announced(report, f"computing the logit lens of {len(idx)} tokens"):
        view = lens_view(loaded.model, loaded.tokenizer, idx, arguments.top, edits)
    source = str(loaded.folder)
    print_view(
        arguments,
        f"{source}: logit lens of {len(idx)} tokens",
        _tables(view) if arguments.position is None else [_position(view, arguments.position)],
        {"source": source, **view},
    )


def _tables(view: "View") -> Iterator[Table]:
    """Yield tables of the most likely next tokens of every row, under the text."""
    from gpt.extras.inspection.views.tokens import (
        LONGEST,
        mostly_characters,
        one_character,
        shorten,
    )

    rows: list[tuple[str, list[str]]] = [("text", view["labels"])]
    rows.append(("actual next", [label or " " for label in view["next"]]))
    for name, row in reversed(list(zip(view["rows"], view["top"], strict=True))):
        rows.append((f"after {name}", [cell[0][0] for cell in row]))
    of_characters = mostly_characters([label for _, labels in rows for label in labels])
    note = "the last block is on top; --position T shows the most likely tokens after one position"
    if of_characters:
        note = f"· is a token whose label has more than one character;\n{note}"
    count = WIDTH if of_characters else WIDTH // LONGEST
    for start in range(0, len(view["labels"]), count):
        part = slice(start, start + count)
        if of_characters:
            body = [(name, "".join(map(one_character, labels[part]))) for name, labels in rows]
            yield Table(f"from position {start}", ("", "most likely next token"), body, "<<", note)
        else:
            cells = [(name, *(shorten(label) for label in labels[part])) for name, labels in rows]
            positions = map(str, range(start, start + len(cells[0]) - 1))
            yield Table(
                f"from position {start}", ("", *positions), cells, "<" * len(cells[0]), note
            )


def _position(view: "View", position: int) -> Table:
    count = len(view["top"][0][position])
    came = view["next"][position]
    rows = []
    for name, row, chance in reversed(
        list(zip(view["rows"], view["top"], view["next_probability"], strict=True))
    ):
        cells = [f"{token} {probability:.3f}" for token, probability in row[position]]
        rows.append(
            (
                f"after {name}",
                *cells,
                "-" if chance[position] is None else f"{chance[position]:.3f}",
            )
        )
    header = ("", *(str(rank) for rank in range(1, count + 1)), f"p({came})" if came else "p(next)")
    title = f"after position {position}, {view['labels'][position]}"
    return Table(title, header, rows, "<" * (count + 1) + ">")
