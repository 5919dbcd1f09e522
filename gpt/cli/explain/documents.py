"""`scripts/explain.py walk` and `mathematics`: write documents in Markdown."""

import argparse
import sys
from typing import Any

from gpt.cli.command import add_command
from gpt.cli.explain.model_options import load_model
from gpt.cli.explain.output_options import write_file
from gpt.cli.explain.text_options import add_prompt_option, read_ids
from gpt.cli.shared_options import add_checkpoint_options, not_empty

HEAD = """# One character through the model

What happens to a short text in a GPT, step by step, with every tensor and real numbers. Axes: B sequences, T positions,
S key positions, C width of the residual stream, H heads, D width of a head, F hidden width, V ids. Linear layers
keep their weights transposed; `weight.T` is what multiplies.
"""


def add_parser(subparsers: Any) -> None:
    """Add both pages and their options."""
    walk = add_command(
        subparsers,
        "walk",
        "Write how a text passes through a trained model, as a Markdown page.",
        'python scripts/explain.py walk --prompt "Softwar" --output walk.md',
    )
    add_checkpoint_options(walk)
    add_prompt_option(walk)
    walk.set_defaults(run=_write_walk)
    mathematics = add_command(
        subparsers,
        "mathematics",
        "Write every formula of a block, forward and backward, as a Markdown page.",
        "python scripts/explain.py mathematics --output mathematics.md",
    )
    mathematics.set_defaults(run=_write_mathematics)
    for parser in (walk, mathematics):
        parser.add_argument(
            "--output", type=not_empty, metavar="FILE", help="write to this file instead of standard output"
        )


def _write_walk(arguments: argparse.Namespace) -> None:
    loaded = load_model(arguments)
    idx = read_ids(arguments, loaded)

    from gpt.inspection.rendering.walk import walk_page

    vocabulary, known = loaded.model.vocab_size, loaded.tokenizer.vocab_size
    unused = f" It has {vocabulary:,} ids, of which the text it was trained on used {known}." * (vocabulary > known)
    steps = loaded.config.train.max_steps
    made_of = f"\nMade by `scripts/explain.py walk` of `{loaded.folder}`, after {steps} steps.{unused}\n\n"
    _write_page(arguments, HEAD + made_of + walk_page(loaded.model, loaded.tokenizer, idx))


def _write_mathematics(arguments: argparse.Namespace) -> None:
    from gpt.inspection.rendering.mathematics_page import mathematics_page

    _write_page(arguments, mathematics_page())


def _write_page(arguments: argparse.Namespace, page: str) -> None:
    """Print a page, or write it to the file of `--output` and print that name.

    Raises:
        GPTError: it cannot be written.
    """
    if arguments.output is None:
        sys.stdout.write(page)
    else:
        write_file(arguments.output, page.encode())
        print(arguments.output)
