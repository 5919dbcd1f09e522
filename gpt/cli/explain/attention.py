"""`gpt explain attention`: where each head attends."""

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from gpt.cli.command import report
from gpt.cli.explain.model_options import check_range
from gpt.cli.explain.text_options import GIB, add_layer_options, add_text_options, open_text, write_outputs
from gpt.cli.tables import print_view
from gpt.errors import ConfigError
from gpt.inspection.rendering.tables import Table
from gpt.progress import announced

if TYPE_CHECKING:
    from torch import Tensor

    from gpt.checkpoint import Loaded
    from gpt.inspection.tracing.activation_cache import Edits
    from gpt.inspection.views.tokens import View

SUMMARY = "Show where each head attends: a table of all heads, or the matrix of one."
EXAMPLE = '--prompt "To be, or not" --layer 2 --head 1'

SHADES = " ░▒▓█"
GRAYS = (16, *range(232, 256), 231)
"""Shades of gray in the 256-color terminal palette, from black to white."""
HEADER = ("layer", "head", "itself", "previous", "first", "distance", "entropy", "without it")
NOTE = (
    "weights on the query's own, the previous and the first position; mean distance back in positions; entropy of "
    "the\nweights in bits; change of the loss, in nats per token, with the head's output zeroed. One head as a "
    "matrix: --layer L --head H"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_text_options(parser)
    add_layer_options(parser)
    parser.add_argument("--layer", type=int, metavar="L", help="one layer, counted from 0")
    parser.add_argument("--head", type=int, metavar="H", help="one head of that layer, counted from 0")
    parser.add_argument("--numbers", action="store_true", help="the matrix as numbers, not shades")


def run(arguments: argparse.Namespace) -> None:
    _check(arguments)
    loaded, idx, edits = open_text(arguments, "numbers")
    layer, head, model = arguments.layer, arguments.head, loaded.config.model
    if layer is not None:
        check_range("--layer", layer, 0, model.n_layer - 1, "layers of the model")
    if head is not None:
        check_range("--head", head, 0, model.n_head - 1, "heads of a layer")

    from gpt.inspection.views.attention import attention_view

    source = str(loaded.folder)
    with announced(report, f"computing the attention weights of {len(idx)} tokens"):
        view = attention_view(loaded.model, loaded.tokenizer, idx, edits, round(arguments.memory_limit * GIB))
    page = {**view, "layer": layer, "head": head}
    if write_outputs(
        arguments, "attention", page, "Attention", source, lambda draw: draw.attention_picture(view, layer, head)
    ):
        return
    if head is not None and not arguments.json:
        _print_matrix(arguments, view)
        return
    with announced(report, "measuring the loss without each head"):
        heads = _heads(arguments, view, loaded, idx, edits)
    title = f"{source}: attention over {len(idx)} tokens"
    print_view(
        arguments, title, lambda: [_table(heads)], {"source": source, **_summary(arguments, view), "heads": heads}
    )


def _check(arguments: argparse.Namespace) -> None:
    """Raise ConfigError for options that contradict each other, before a model is loaded."""
    if arguments.head is not None and arguments.layer is None:
        raise ConfigError("--head needs --layer")
    if arguments.numbers and arguments.head is None:
        raise ConfigError("--numbers prints one matrix; give --layer and --head")
    if arguments.markdown and arguments.head is not None:
        raise ConfigError("--markdown has no effect with --head: a matrix is not a table; leave one of them out")


def _heads(
    arguments: argparse.Namespace, view: "View", loaded: "Loaded", idx: "Tensor", edits: "Edits"
) -> list[dict[str, Any]]:
    """Return the averages of each head shown; a single token has no loss that could change."""
    from gpt.inspection.views.attention import ablate_heads, summarize_head

    layers = range(len(view["weights"])) if arguments.layer is None else [arguments.layer]
    changes = ablate_heads(loaded.model, idx, edits, layers).tolist() if len(idx) > 1 else None
    return [
        {
            "layer": layer,
            "head": head,
            **vars(summarize_head(pattern)),
            "without_it": changes[row][head] if changes else None,
        }
        for row, layer in enumerate(layers)
        for head, pattern in enumerate(view["weights"][layer])
        if arguments.head in (None, head)
    ]


def _summary(arguments: argparse.Namespace, view: "View") -> dict[str, Any]:
    """Return the requested weights: (T, T) of one head, (H, T, T) of one layer, or all of them."""
    weights = view["weights"]
    for index in (arguments.layer, arguments.head):
        weights = weights if index is None else weights[index]
    chosen = {"layer": arguments.layer, "head": arguments.head}
    return {**chosen, "labels": view["labels"], "weights": weights.tolist()}


def _print_matrix(arguments: argparse.Namespace, view: "View") -> None:
    matrix = view["weights"][arguments.layer, arguments.head].tolist()
    print(f"layer {arguments.layer}, head {arguments.head}: rows: queries; columns: keys; each row sums to 1")
    if arguments.numbers:
        print(numbers(matrix, view["labels"]))
    else:
        print(heat_map(matrix, view["labels"], color=sys.stdout.isatty()))


def _table(heads: Iterable[dict[str, Any]]) -> Table:
    rows = []
    for figures in heads:
        layer, head, *averages, change = figures.values()
        cells = (f"{value:.3f}" for value in averages)
        rows.append((str(layer), str(head), *cells, "-" if change is None else f"{change:+.4f}"))
    return Table("every head", HEADER, rows, ">>>>>>>>", NOTE)


def heat_map(matrix: Sequence[Sequence[float]], labels: Sequence[str], color: bool) -> str:
    """Return a heat map of a square matrix with values from 0 to 1, each cell two characters wide.

    `color`: shade by color instead of characters.
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
