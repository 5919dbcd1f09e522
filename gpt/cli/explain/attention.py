"""`scripts/explain.py attention`: where each head looks."""

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gpt.cli.common import add_checkpoint_options
from gpt.cli.explain.heatmap import heat_map, numbers
from gpt.cli.explain.outputs import add_output_options, write_outputs
from gpt.cli.explain.source import add_view, load_model
from gpt.cli.explain.tables import Table, add_format_options, print_view
from gpt.cli.explain.text import add_memory_option, add_prompt_option, memory_limit_bytes, read_ids
from gpt.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from gpt.checkpoint import Loaded
    from gpt.inspection.views import View

HEADER = ("layer", "head", "itself", "previous", "first", "distance", "entropy", "without it")
NOTE = (
    "weights on the query's own, the previous and the first position; mean distance back in positions; entropy of "
    "the\nweights in bits; change of the loss, in nats per token, with the head's output zeroed. One head as a "
    "matrix: --layer L --head H"
)


def add_parser(subparsers: Any) -> None:
    """The options of this view."""
    parser = add_view(
        subparsers,
        "attention",
        "where each head looks: a table of all heads, or the matrix of one",
        '--prompt "To be, or not" --layer 2 --head 1',
    )
    add_checkpoint_options(parser)
    add_prompt_option(parser)
    add_memory_option(parser)
    parser.add_argument("--layer", type=int, metavar="L", help="one layer, counted from 0")
    parser.add_argument("--head", type=int, metavar="H", help="one head of it, counted from 0")
    parser.add_argument("--numbers", action="store_true", help="the matrix as numbers, not shades")
    add_output_options(parser)
    add_format_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compute the weights and show them."""
    if arguments.head is not None and arguments.layer is None:
        raise InputError("--head needs --layer")
    if arguments.numbers and arguments.head is None:
        raise InputError("--numbers prints one matrix; give --layer and --head")
    loaded = load_model(arguments)
    model = loaded.config.model
    for name, value, size in (("layer", arguments.layer, model.n_layer), ("head", arguments.head, model.n_head)):
        if value is not None and not 0 <= value < size:
            raise InputError(f"--{name} is {value}, but the model has {name}s 0 to {size - 1}")
    idx = read_ids(arguments, loaded)

    from gpt.inspection.views import attention_view

    view = attention_view(loaded.model, loaded.tokenizer, idx, memory_limit_bytes(arguments))
    layer, head, source = arguments.layer, arguments.head, str(loaded.folder)
    if write_outputs(
        arguments,
        "attention",
        {**view, "layer": layer or 0, "head": head or 0},
        "Attention",
        source,
        lambda draw: draw.attention_picture(view, layer, head),
    ):
        return 0
    if arguments.json:
        _print_json(arguments, view, source)
    elif arguments.head is not None:
        _print_matrix(arguments, view)
    else:
        _print_heads(arguments, view, loaded, idx)
    return 0


def _print_json(arguments: argparse.Namespace, view: "View", source: str) -> None:
    """The weights that were asked for: (T, T) of one head, (H, T, T) of one layer, or all of them."""
    weights = view["weights"]
    for index in (arguments.layer, arguments.head):
        weights = weights if index is None else weights[index]
    chosen = {"layer": arguments.layer, "head": arguments.head}
    print(json.dumps({"source": source, **chosen, "labels": view["labels"], "weights": weights.tolist()}))


def _print_matrix(arguments: argparse.Namespace, view: "View") -> None:
    matrix = view["weights"][arguments.layer, arguments.head].tolist()
    print(f"layer {arguments.layer}, head {arguments.head}: rows look at columns, and each row sums to 1")
    if arguments.numbers:
        print(numbers(matrix, view["labels"]))
    else:
        print(heat_map(matrix, view["labels"], colour=sys.stdout.isatty()))


def _print_heads(arguments: argparse.Namespace, view: "View", loaded: "Loaded", idx: "Tensor") -> None:
    from gpt.inspection.heads import ablate_heads, summarise_head

    changes = ablate_heads(loaded.model, idx).tolist() if len(idx) > 1 else None
    rows = []
    for layer in range(len(view["weights"])) if arguments.layer is None else [arguments.layer]:
        for head, pattern in enumerate(view["weights"][layer]):
            values = list(asdict(summarise_head(pattern)).values())
            change = f"{changes[layer][head]:+.4f}" if changes else "-"
            rows.append((str(layer), str(head), *(f"{value:.3f}" for value in values), change))
    title = f"{loaded.folder}: attention over {len(idx)} tokens"
    print_view(arguments, title, [Table("every head", HEADER, rows, ">>>>>>>>", NOTE)], {})
