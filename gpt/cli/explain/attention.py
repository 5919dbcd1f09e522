"""`scripts/explain.py attention`: where each head attends."""

import argparse
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gpt.cli.command import add_command, report
from gpt.cli.explain.heatmap import heat_map, numbers
from gpt.cli.explain.model_options import load_model
from gpt.cli.explain.output_options import check_outputs, write_outputs
from gpt.cli.explain.size_options import check_range
from gpt.cli.explain.text_options import add_memory_option, add_text_options, memory_limit_bytes, read_edits, read_ids
from gpt.cli.tables import print_view
from gpt.errors import ConfigError
from gpt.inspection.rendering.tables import Table
from gpt.progress import announced

if TYPE_CHECKING:
    from torch import Tensor

    from gpt.checkpoint import Loaded
    from gpt.inspection.tracing.activation_cache import Edits
    from gpt.inspection.views.tokens import View

HEADER = ("layer", "head", "itself", "previous", "first", "distance", "entropy", "without it")
NOTE = (
    "weights on the query's own, the previous and the first position; mean distance back in positions; entropy of "
    "the\nweights in bits; change of the loss, in nats per token, with the head's output zeroed. One head as a "
    "matrix: --layer L --head H"
)


def add_parser(subparsers: Any) -> None:
    """Add this view and its options."""
    parser = add_command(
        subparsers,
        "attention",
        "Show where each head attends: a table of all heads, or the matrix of one.",
        'python scripts/explain.py attention --prompt "To be, or not" --layer 2 --head 1',
    )
    add_text_options(parser)
    add_memory_option(parser)
    parser.add_argument("--layer", type=int, metavar="L", help="one layer, counted from 0")
    parser.add_argument("--head", type=int, metavar="H", help="one head of that layer, counted from 0")
    parser.add_argument("--numbers", action="store_true", help="the matrix as numbers, not shades")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Compute the weights and show them."""
    _check(arguments)
    edits, limit = read_edits(arguments), memory_limit_bytes(arguments)
    loaded = load_model(arguments)
    layer, head, model = arguments.layer, arguments.head, loaded.config.model
    if layer is not None:
        check_range("--layer", layer, 0, model.n_layer - 1, "layers of the model")
    if head is not None:
        check_range("--head", head, 0, model.n_head - 1, "heads of a layer")
    idx = read_ids(arguments, loaded)

    from gpt.inspection.views.attention import attention_view

    source = str(loaded.folder)
    with announced(report, f"computing the attention weights of {len(idx)} tokens"):
        view = attention_view(loaded.model, loaded.tokenizer, idx, edits, limit)
    page = {**view, "layer": layer or 0, "head": head or 0}
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
    check_outputs(arguments, "numbers")


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
