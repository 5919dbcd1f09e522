"""`scripts/explain.py`: look inside a model, with one module per view."""

import argparse
from collections.abc import Sequence

from gpt.cli.command import CommandParser, run_command
from gpt.cli.explain import attention, documents, flops, lens, memory, params, scaling, shapes, surprisal
from gpt.cli.explain.model_options import check_device
from gpt.cli.shared_options import load_given_plugins

VIEWS = (shapes, attention, lens, surprisal, params, flops, memory, scaling, documents)
"""Each has `add_parser(subparsers)`, which adds its parsers and the functions that run them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Show a view; return the exit code: 0 done, 2 a user's mistake, 130 interrupted."""
    return run_command(lambda: _run(_parse(argv)))


def _run(arguments: argparse.Namespace) -> int:
    check_device(arguments)
    arguments.run(arguments)
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    load_given_plugins(argv)
    parser = CommandParser(
        "Look inside a model: its shapes, attention, predictions, parameters, FLOPs and memory.",
        'python scripts/explain.py attention --prompt "To be, or not" --layer 2 --head 1',
    )
    subparsers = parser.add_subparsers(required=True, metavar="VIEW", title="views (each has its own --help)")
    for view in VIEWS:
        view.add_parser(subparsers)
    arguments, unknown = parser.parse_known_args(argv)
    if "overrides" in arguments:
        arguments.overrides = [text for text in unknown if not text.startswith("-")]
        unknown = [text for text in unknown if text.startswith("-")]
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return arguments
