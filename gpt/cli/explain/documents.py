"""`scripts/explain.py walk` and `mathematics`: pages to read, made from the code and a run."""

import argparse
import sys
from typing import Any

from gpt.cli.common import add_checkpoint_options
from gpt.cli.explain.outputs import write_file
from gpt.cli.explain.source import add_view, load_model
from gpt.cli.explain.text import add_prompt_option, read_ids

WALK_HEAD = """# One character through the model

What happens to a short text in a GPT, step by step, with every tensor and real numbers. Axes: B rows, T positions,
S positions looked at, C width of the residual stream, H heads, D width of a head, F hidden width, V ids. Linear layers
keep their weights transposed; `weight.T` is what multiplies.
"""


def add_parser(subparsers: Any) -> None:
    """The options of these two."""
    walk = add_view(
        subparsers, "walk", "a text through a trained model, as a Markdown page", '--prompt "Softwar" --output walk.md'
    )
    add_checkpoint_options(walk)
    add_prompt_option(walk)
    walk.set_defaults(run=run_walk)
    mathematics = add_view(
        subparsers,
        "mathematics",
        "every formula of a block, forward and backward, as a Markdown page",
        "--output mathematics.md",
    )
    mathematics.set_defaults(run=run_mathematics)
    for parser in (walk, mathematics):
        parser.add_argument("--output", metavar="FILE", help="write there instead of to standard output")


def run_walk(arguments: argparse.Namespace) -> int:
    """Write the walk."""
    loaded = load_model(arguments)
    idx = read_ids(arguments, loaded)

    from gpt.inspection.walk import walk_page

    made_of = f"Made of `{loaded.folder}` by `scripts/explain.py walk`.\n\n"
    return _write(arguments, WALK_HEAD + made_of + walk_page(loaded.model, loaded.tokenizer, idx))


def run_mathematics(arguments: argparse.Namespace) -> int:
    """Write the formulas."""
    from gpt.inspection.mathematics_page import mathematics_page

    return _write(arguments, mathematics_page())


def _write(arguments: argparse.Namespace, page: str) -> int:
    if arguments.output is None:
        sys.stdout.write(page)
    else:
        write_file(arguments.output, page.encode())
        print(arguments.output)
    return 0
