"""`gpt explain attention`: where each head attends."""

import argparse
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from gpt.cli.command import report
from gpt.cli.explain.options import add_text_options, check_range, open_text
from gpt.cli.tables import print_view, shade_level, shows_tints, terminal_width, tint
from gpt.extras.inspection.rendering.tables import Table, fill
from gpt.system.errors import ConfigError
from gpt.system.progress import announce_if_slow

if TYPE_CHECKING:
    from torch import Tensor

    from gpt.checkpoint import Loaded
    from gpt.extras.inspection.tracing.activation_cache import Edits
    from gpt.extras.inspection.views.tokens import View

SUMMARY = "Show where each head attends: a table of all heads, or the matrix of one."
EXAMPLE = '--prompt "To be, or not" --layer 2 --head 1'

SHADES = " ░▒▓█"
"""Characters of the heat map, from a weight of 0 to a weight of 1."""
HEADER = ("layer", "head", "itself", "previous", "first", "distance", "entropy", "without it")
NOTE = (
    "weights on the query's own, the previous and the first position; "
    "mean distance back in positions; entropy of the\n"
    "weights in bits; change of the loss, in bits per token, with the head's output zeroed. "
    "One head as a matrix: --layer L --head H"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_text_options(parser)
    parser.add_argument("--layer", type=int, metavar="L", help="one layer, counted from 0")
    parser.add_argument(
        "--head", type=int, metavar="H", help="one head of that layer, counted from 0"
    )


def run(arguments: argparse.Namespace) -> None:
    layer = arguments.layer
    head = arguments.head
    if head is not None and layer is None:
        raise ConfigError("--head needs --layer")
    loaded, idx, edits = open_text(arguments)
    model = loaded.config.model
    if layer is not None:
        check_range("--layer", layer, 0, model.n_layer - 1, "layers of the model")
    if head is not None:
        check_range("--head", head, 0, model.n_head - 1, "heads of a layer")

    from gpt.extras.inspection.views.attention import attention_view

    source = str(loaded.folder)
    with announce_if_slow(report, f"computing the attention weights of {len(idx)} tokens"):
        view = attention_view(loaded.model, loaded.tokenizer, idx, edits)
    if head is not None and not arguments.json:
        width = terminal_width()
        title = f"layer {layer}, head {head}: rows: queries; columns: keys; each row sums to 1"
        print(fill(title, width))
        print(heat_map(view["weights"][layer, head].tolist(), view["labels"], width))
        return
    # Each head needs a forward pass of its own, which is not spent on the heat map above.
    with announce_if_slow(report, "measuring the loss without each head"):
        heads = _summarize_heads(arguments, view, loaded, idx, edits)
    title = f"{source}: attention over {len(idx)} tokens"
    summary = {
        "source": source,
        "layer": layer,
        "head": head,
        "labels": view["labels"],
        "weights": _requested_weights(arguments, view["weights"]).tolist(),
        "heads": heads,
    }
    print_view(arguments, title, [_table(heads)], summary)


def _summarize_heads(
    arguments: argparse.Namespace, view: "View", loaded: "Loaded", idx: "Tensor", edits: "Edits"
) -> list[dict[str, Any]]:
    """Return the averages of each requested head, and how the loss changes without it."""
    from gpt.extras.inspection.views.attention import ablate_heads, summarize_head

    layers = [arguments.layer]
    if arguments.layer is None:
        layers = list(range(len(view["weights"])))
    changes = None
    if len(idx) > 1:  # a single token has no next one, and so no loss that could change
        changes = ablate_heads(loaded.model, idx, edits, layers).tolist()
    heads = []
    for row, layer in enumerate(layers):
        for head, weights in enumerate(view["weights"][layer]):  # (T, T)
            if arguments.head not in (None, head):
                continue
            averages = vars(summarize_head(weights))
            change = None if changes is None else changes[row][head]
            heads.append({"layer": layer, "head": head, **averages, "without_it": change})
    return heads


def _requested_weights(arguments: argparse.Namespace, weights: "Tensor") -> "Tensor":
    """Return (T, T) weights of one head, (H, T, T) of one layer, or (n_layer, H, T, T) of all."""
    if arguments.layer is not None:
        weights = weights[arguments.layer]
    if arguments.head is not None:
        weights = weights[arguments.head]
    return weights


def _table(heads: Iterable[dict[str, Any]]) -> Table:
    """Return a row for each head; `-` where a text of one token has no loss."""
    rows = []
    for figures in heads:
        # The keys are in the order of HEADER.
        layer, head, *averages, change = figures.values()
        cells = [f"{average:.3f}" for average in averages]
        # The first three are weights, from 0 to 1; distance and entropy have no such scale.
        for column, weight in enumerate(averages[:3]):
            cells[column] = tint(cells[column], _strength(weight))
        without_it = "-" if change is None else f"{change:+.4f}"
        rows.append((str(layer), str(head), *cells, without_it))
    return Table("every head", HEADER, rows, ">>>>>>>>", NOTE)


def heat_map(
    matrix: Sequence[Sequence[float]], labels: Sequence[str], width: int | None = None
) -> str:
    """Return a heat map of the weights (T, T) of one head, two characters for each weight.

    One that is wider than `width` characters continues below with the later keys, and with the
    queries that may attend to them; None: any number of characters.
    """
    from gpt.extras.inspection.views.tokens import one_character

    label_width = max(len(label) for label in labels)
    keys_of_part = len(labels)
    if width is not None:
        keys_of_part = max(1, (width - label_width - 1) // 2)
    parts = []
    for start in range(0, len(labels), keys_of_part):
        end = start + keys_of_part
        columns = "".join(f"{one_character(label)} " for label in labels[start:end])
        lines = [(" " * (label_width + 1) + columns).rstrip()]
        for query in range(start, len(labels)):
            last = min(end, query + 1)  # a query attends to no later key
            cells = "".join(_cell(weight) for weight in matrix[query][start:last])
            lines.append(f"{labels[query]:>{label_width}} {cells}")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _cell(weight: float) -> str:
    """Return the tint or the shade of a weight, as wide as the label of a key and its gap."""
    if shows_tints():
        return tint("  ", _strength(weight))
    return SHADES[shade_level(_strength(weight), len(SHADES))] * 2


def _strength(weight: float) -> float:
    """Return how strong the tint or the shade of a weight is, from 0 to 1."""
    # An edit can make weights that are below 0 or above 1.
    weight = min(max(weight, 0.0), 1.0)
    # The square root, since the weights of a long text are so small that all would be blank.
    return math.sqrt(weight)
