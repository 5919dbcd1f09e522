"""`scripts/explain.py surprisal`: how likely each token was, and the alternatives to it."""

import argparse
from typing import TYPE_CHECKING, Any

from gpt.cli.command import add_command, report
from gpt.cli.explain.model_options import load_model
from gpt.cli.explain.output_options import check_outputs, write_outputs
from gpt.cli.explain.size_options import check_range
from gpt.cli.explain.text_options import add_text_options, read_edits, read_ids
from gpt.cli.sampling_options import add_filter_options, with_options
from gpt.cli.tables import print_view
from gpt.config import SamplingParams
from gpt.config.filter_fields import all_filters
from gpt.inspection.rendering.tables import Table
from gpt.progress import announced

if TYPE_CHECKING:
    from gpt.inspection.views.tokens import View

BAR = 10
"""Number of bits that fill the bar."""


def add_parser(subparsers: Any) -> None:
    """Add this view and its options."""
    parser = add_command(
        subparsers,
        "surprisal",
        "Show the bits of every token, and the alternatives before and after sampling's filters.",
        'python scripts/explain.py surprisal --prompt "To be, or not to be" --temperature 0.8 --top-k 5',
    )
    add_text_options(parser)
    parser.add_argument("--top", type=int, default=5, metavar="N", help="alternatives shown (default: 5)")
    _add_settings(parser)
    parser.set_defaults(run=run)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling", "Settings of the last column (default: those of the run).")
    group.add_argument("--temperature", type=float, metavar="T", help="0 is greedy, 1 the model's own distribution")
    add_filter_options(group)
    group.add_argument(
        "--repetition-penalty", type=float, metavar="R", help="above 1: avoid tokens already in the text"
    )


def run(arguments: argparse.Namespace) -> None:
    """Compute the surprisal and show it."""
    settings = ("temperature", *all_filters(), "repetition_penalty")
    given = {name: getattr(arguments, name) for name in settings if getattr(arguments, name) is not None}
    with_options(SamplingParams(), given)  # report a wrong value before importing torch
    check_range("--top", arguments.top, 1)
    check_outputs(arguments)
    edits = read_edits(arguments)
    loaded = load_model(arguments)
    idx = read_ids(arguments, loaded, fewest=2)

    from gpt.inspection.views.surprisal import surprisal, surprisal_view

    params = with_options(loaded.config.sample, given)
    with announced(report, f"computing the surprisal of {len(idx)} tokens"):
        view = surprisal_view(loaded.model, loaded.tokenizer, idx, params, arguments.top, edits)
    source = str(loaded.folder)
    if write_outputs(arguments, "surprisal", view, "Surprisal", source, lambda draw: draw.surprisal_picture(view)):
        return
    whole = f"; {surprisal(loaded.model, idx).mean_bits:.4f} without the edit" if edits else ""
    title = f"{source}: {view['mean_bits']:.4f} bits per token on average{whole}"
    print_view(arguments, title, lambda: [_table(view)], {"source": source, **view})


def _table(view: "View") -> Table:
    rows = []
    for number, (label, bits) in enumerate(zip(view["labels"], view["bits"], strict=True)):
        bar = "" if bits is None else "█" * min(BAR, round(bits))
        cells = (_named(view["before"][number]), _named(view["after"][number]))
        rows.append((str(number), label, "-" if bits is None else f"{bits:.2f}", bar, *cells))
    header = ("", "token", "bits", "", "most likely before", f"after {view['settings']}")
    return Table("token by token", header, rows, "><><<<", "-log2 of the probability that the model gave to the token")


def _named(alternatives: list[tuple[str, float]]) -> str:
    return "  ".join(f"{token} {probability:.3f}" for token, probability in alternatives)
