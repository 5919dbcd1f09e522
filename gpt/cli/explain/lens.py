"""`gpt explain lens`: what the model would predict after each layer."""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from gpt.cli.command import report
from gpt.cli.explain.options import add_text_options, check_range, open_text
from gpt.cli.shared_options import add_number
from gpt.cli.tables import print_view, terminal_width, tint
from gpt.extras.inspection.rendering.tables import COLUMN_GAP, Table
from gpt.system.progress import announce_if_slow

if TYPE_CHECKING:
    from gpt.extras.inspection.views.tokens import View

SUMMARY = "Show the logit lens: the most likely next token after each layer."
EXAMPLE = '--prompt "To be, or not to be" --position 5'

MOST_CHARACTERS = 60
"""Most tokens of one character in a table; a longer text continues in the next table."""
MOST_TOKENS = 6
"""The same, where a token has a column of its own."""
Labels = Sequence[str]
Probabilities = Sequence[float]
Rows = Sequence[tuple[str, Labels, Probabilities]]
"""Each row of a lens has a name, and for each position a token and how likely it is.

The text itself has probabilities of 0, so that it has no tint.
"""


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

    with announce_if_slow(report, f"computing the logit lens of {len(idx)} tokens"):
        view = lens_view(loaded.model, loaded.tokenizer, idx, arguments.top, edits)
    tables: Iterable[Table] = _tables(view)  # computed when they are printed
    if arguments.position is not None:
        tables = [_position_table(view, arguments.position)]
    source = str(loaded.folder)
    title = f"{source}: logit lens of {len(idx)} tokens"
    print_view(arguments, title, tables, {"source": source, **view})


def _tables(view: "View") -> Iterator[Table]:
    """Yield tables of the most likely next token after each layer, below the text itself."""
    from gpt.extras.inspection.views.tokens import mostly_characters

    actual_next = [label or " " for label in view["next"]]  # the last token has no next one
    untinted = [0.0] * len(actual_next)
    rows: list[tuple[str, Labels, Probabilities]] = [
        ("text", view["labels"], untinted),
        ("actual next", actual_next, untinted),
    ]
    for name, top in zip(view["rows"], view["top"], strict=True):
        most_likely = [candidates[0] for candidates in top]
        labels = [label for label, _ in most_likely]
        probabilities = [probability for _, probability in most_likely]
        rows.append((f"after {name}", labels, probabilities))

    note = "--position T shows the most likely tokens after one position"
    every_label = [label for _, labels, _ in rows for label in labels]
    of_characters = mostly_characters(every_label)
    if of_characters:
        note = f"· is a token whose label has more than one character;\n{note}"
    count = _tokens_per_table([name for name, _, _ in rows], of_characters)
    for start in range(0, len(view["labels"]), count):
        end = start + count
        part = [(name, labels[start:end], shares[start:end]) for name, labels, shares in rows]
        if of_characters:
            yield _character_table(part, start, note)
        else:
            yield _token_table(part, start, note)


def _tokens_per_table(names: Sequence[str], of_characters: bool) -> int:
    """Return how many tokens fit a line of the terminal, beside the names of the rows."""
    from gpt.extras.inspection.views.tokens import LONGEST

    most = MOST_CHARACTERS if of_characters else MOST_TOKENS
    width = terminal_width()
    if width is None:
        return most
    room = width - max(map(len, names))
    if of_characters:
        room -= len(COLUMN_GAP)
        return max(1, min(most, room))
    return max(1, min(most, room // (len(COLUMN_GAP) + LONGEST)))


def _character_table(rows: Rows, start: int, note: str) -> Table:
    """Return the rows as strings, one character for each token."""
    from gpt.extras.inspection.views.tokens import one_character

    strings = []
    for name, labels, probabilities in rows:
        characters = map(one_character, labels)
        strings.append((name, "".join(map(tint, characters, probabilities))))
    return Table(f"from position {start}", ("", "most likely next token"), strings, "<<", note)


def _token_table(rows: Rows, start: int, note: str) -> Table:
    """Return the rows with a column for each token, whose header is its position."""
    from gpt.extras.inspection.views.tokens import shorten

    count = len(rows[0][1])
    positions = [str(position) for position in range(start, start + count)]
    cells = []
    for name, labels, probabilities in rows:
        short_labels = map(shorten, labels)
        cells.append((name, *map(tint, short_labels, probabilities)))
    return Table(f"from position {start}", ("", *positions), cells, "<" * (count + 1), note)


def _position_table(view: "View", position: int) -> Table:
    """Return the most likely tokens after one position, and how likely the actual next one is."""
    count = len(view["top"][0][position])
    actual_next = view["next"][position]
    layers = zip(view["rows"], view["top"], view["next_probability"], strict=True)
    rows = []
    for name, top, next_probability in layers:
        cells = []
        for token, probability in top[position]:
            cells.append(tint(f"{token} {probability:.3f}", probability))
        probability_of_next = next_probability[position]
        last_cell = "-" if probability_of_next is None else f"{probability_of_next:.3f}"
        rows.append((f"after {name}", *cells, last_cell))
    ranks = [str(rank) for rank in range(1, count + 1)]
    last_column = f"p({actual_next})" if actual_next else "p(next)"
    header = ("", *ranks, last_column)
    title = f"after position {position}, {view['labels'][position]}"
    return Table(title, header, rows, "<" * (count + 1) + ">")
