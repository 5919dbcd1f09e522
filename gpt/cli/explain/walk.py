"""`scripts/explain.py walk`: one text through a model, as a page to read."""

import argparse
from typing import Any

from gpt.cli.common import add_checkpoint_options, add_command
from gpt.cli.explain.outputs import add_page_option, write_page
from gpt.cli.explain.source import load_model
from gpt.cli.explain.text import add_prompt_option, read_ids

HEAD = """# One character through the model

What happens to a short text in a GPT, step by step, with every tensor and real numbers. Axes: B rows, T positions,
S positions looked at, C width of the residual stream, H heads, D width of a head, F hidden width, V ids. Linear layers
keep their weights transposed; `weight.T` is what multiplies.
"""


def add_parser(subparsers: Any) -> None:
    """Add this view and its options."""
    parser = add_command(
        subparsers,
        "walk",
        "Write a text's way through a trained model as a Markdown page.",
        'python scripts/explain.py walk --prompt "Softwar" --output walk.md',
    )
    add_checkpoint_options(parser)
    add_prompt_option(parser)
    add_page_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the page."""
    loaded = load_model(arguments)
    idx = read_ids(arguments, loaded)

    from gpt.inspection.rendering.walk import walk_page

    vocabulary, known = loaded.model.vocab_size, loaded.tokenizer.vocab_size
    unused = f" It has {vocabulary:,} ids, of which the text it was trained on used {known}." * (vocabulary > known)
    steps = loaded.config.train.max_steps
    made_of = f"\nMade by `scripts/explain.py walk` of `{loaded.folder}`, after {steps} steps.{unused}\n\n"
    write_page(arguments, HEAD + made_of + walk_page(loaded.model, loaded.tokenizer, idx))
    return 0
