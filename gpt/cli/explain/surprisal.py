"""`gpt explain surprisal`: how likely each token was, and the alternatives to it."""

import argparse
from typing import TYPE_CHECKING

from gpt.cli.command import report
from gpt.cli.explain.text_options import add_text_options, open_text, write_picture
from gpt.cli.sampling_options import add_filter_options, with_options
from gpt.cli.shared_options import add_number
from gpt.cli.tables import print_view
from gpt.config import SamplingParams
from gpt.filters import FILTERS
from gpt.inspection.rendering.tables import Table
from gpt.progress import announced

if TYPE_CHECKING:
    from gpt.inspection.views.tokens import View

SUMMARY = "Show the bits of every token, and the alternatives before and after sampling's filters."
EXAMPLE = '--prompt "To be, or not to be" --temperature 0.8 --top-k 5'

BAR = 10
"""Number of bits that fill the bar."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_text_options(parser)
    add_number(parser, "--top", "alternatives shown", 5)
    group = parser.add_argument_group("sampling", "Settings of the last column (default: those of the run).")
    group.add_argument("--temperature", type=float, metavar="T", help="0 is greedy, 1 the model's own distribution")
    add_filter_options(group)
    penalty = "above 1: avoid tokens already in the text"
    group.add_argument("--repetition-penalty", type=float, metavar="R", help=penalty)


def run(arguments: argparse.Namespace) -> None:
    settings = ("temperature", *FILTERS, "repetition_penalty")
    given = {name: getattr(arguments, name) for name in settings if getattr(arguments, name) is not None}
    with_options(SamplingParams(), given)  # report a wrong value before importing torch
    loaded, idx, edits = open_text(arguments, fewest=2)

    from gpt.inspection.views.surprisal import surprisal, surprisal_view

    params = with_options(loaded.config.sample, given)
    with announced(report, f"computing the surprisal of {len(idx)} tokens"):
        view = surprisal_view(loaded.model, loaded.tokenizer, idx, params, arguments.top, edits)
    if write_picture(arguments, lambda draw: draw.surprisal_picture(view)):
        return
    source = str(loaded.folder)
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
