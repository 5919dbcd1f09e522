"""`gpt explain walk`: how a text passes through a trained model, as a document in Markdown."""

import argparse
import sys

from gpt.cli.explain.model_options import load_model
from gpt.cli.explain.text_options import add_prompt_option, read_ids
from gpt.cli.shared_options import add_checkpoint_options, not_empty, write_output

SUMMARY = "Write how a text passes through a trained model, as a Markdown page."
EXAMPLE = '--prompt "Softwar" --output walk.md'
HEAD = """# One character through the model

What happens to a short text in a GPT, step by step, with every tensor and real numbers. Axes: B sequences, T positions,
S key positions, C width of the residual stream, H heads, D width of a head, F hidden width, V ids. Linear layers
keep their weights transposed; `weight.T` is what multiplies.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_checkpoint_options(parser)
    add_prompt_option(parser)
    add_page_option(parser)


def add_page_option(parser: argparse.ArgumentParser) -> None:
    page = "write to this file instead of standard output"
    parser.add_argument("--output", type=not_empty, metavar="FILE", help=page)


def run(arguments: argparse.Namespace) -> None:
    loaded = load_model(arguments)
    idx = read_ids(arguments, loaded)

    from gpt.inspection.rendering.walk import walk_page

    vocabulary, known = loaded.model.vocab_size, loaded.tokenizer.vocab_size
    unused = f" It has {vocabulary:,} ids, of which the text it was trained on used {known}." * (vocabulary > known)
    steps = loaded.config.train.max_steps
    made_of = f"\nMade by `gpt explain walk` of `{loaded.folder}`, after {steps} steps.{unused}\n\n"
    write_page(arguments, HEAD + made_of + walk_page(loaded.model, loaded.tokenizer, idx))


def write_page(arguments: argparse.Namespace, page: str) -> None:
    """Print a page, or write it to the file of `--output` and print that name; raise GPTError where that fails."""
    if arguments.output is None:
        sys.stdout.write(page)
    else:
        write_output(arguments.output, page.encode())
        print(arguments.output)
