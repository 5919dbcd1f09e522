"""`gpt explain attention`: where each head attends."""

import argparse
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from gpt.cli.command import report
from gpt.cli.explain.options import add_text_options, check_range, open_text
from gpt.cli.tables import print_view
from gpt.extras.inspection.rendering.tables import Table
from gpt.system.errors import ConfigError
from gpt.system.progress import announced

if TYPE_CHECKING:
    from torch import Tensor

    from gpt.checkpoint import Loaded
    from gpt.extras.inspection.tracing.activation_cache import Edits
    from gpt.extras.inspection.views.tokens import View

SUMMARY = "Show where each head attends: a table of all heads, or the matrix of one."
EXAMPLE = '--prompt "To be, or not" --layer 2 --head 1'

SHADES = " ░▒▓█"
HEADER = ("layer", "head", "itself", "previous", "first", "distance", "entropy", "without it")
NOTE = (
    "weights on the query's own, the previous and the first position; mean distance back in positions; entropy of "
    "the\nweights in bits; change of the loss, in nats per token, with the head's output zeroed. One head as a "
    "matrix: --layer L --head H"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_text_options(parser)
    parser.add_argument("--layer", type=int, metavar="L", help="one layer, counted from 0")
    parser.add_argument(
        "--head", type=int, metavar="H", help="one head of that layer, counted from 0"
    )


def run(arguments: argparse.Namespace) -> None:
    if arguments.head is not None and arguments.layer is None:
        raise ConfigError("--head needs --layer")
    loaded, idx, edits = open_text(arguments)
    layer, head, model = arguments.layer, arguments.head, loaded.config.model
    if layer is not None:
        check_range("--layer", layer, 0, model.n_layer - 1, "layers of the model")
    if head is not None:
        check_range("--head", head, 0, model.n_head - 1, "heads of a layer")

    from gpt.extras.inspection.views.attention import attention_view

    source = str(loaded.folder)
    with announced(report, f"computing the attention weights of {len(idx)} tokens"):
        view = attention_view(loaded.model, loaded.tokenizer, idx, edits)
    if head is not None and not arguments.json:
        print(f"layer {layer}, head {head}: rows: queries; columns: keys; each row sums to 1")
        print(heat_map(view["weights"][layer, head].tolist(), view["labels"]))
        return
    with announced(report, "measuring the loss without each head"):
        heads = _heads(arguments, view, loaded, idx, edits)
    title = f"{source}: attention over {len(idx)} tokens"
    print_view(
        arguments,
        title,
        [_table(heads)],
        {"source": source, **_summary(arguments, view), "heads": heads},
    )


def _heads(
    arguments: argparse.Namespace, view: "View", loaded: "Loaded", idx: "Tensor", edits: "Edits"
) -> list[dict[str, Any]]:
    """Return the averages of each head shown; a single token has no loss that could change."""
    from gpt.extras.inspection.views.attention import ablate_heads, summarize_head

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


def _table(heads: Iterable[dict[str, Any]]) -> Table:
    rows = []
    for figures in heads:
        layer, head, *averages, change = figures.values()
        cells = (f"{value:.3f}" for value in averages)
        rows.append((str(layer), str(head), *cells, "-" if change is None else f"{change:+.4f}"))
    return Table("every head", HEADER, rows, ">>>>>>>>", NOTE)


def heat_map(matrix: Sequence[Sequence[float]], labels: Sequence[str]) -> str:
    """Return a heat map of a square matrix with values from 0 to 1, each cell two characters wide."""
    from gpt.extras.inspection.views.tokens import one_character

    width = max(len(label) for label in labels)
    head = " " * (width + 1) + "".join(f"{one_character(label)} " for label in labels)
    lines = [
        f"{label:>{width}} " + "".join(_cell(value) for value in row[: number + 1])
        for number, (label, row) in enumerate(zip(labels, matrix, strict=True))
    ]
    return "\n".join([head.rstrip(), *lines])


def _cell(value: float) -> str:
    return (
        SHADES[min(int(math.sqrt(value) * len(SHADES)), len(SHADES) - 1)] * 2
    )  # the root keeps small weights visible
