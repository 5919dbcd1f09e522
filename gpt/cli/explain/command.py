"""The command line of `scripts/explain.py`: which view was asked for."""

import argparse
from collections.abc import Sequence

from gpt.cli.common import CommandParser, run_command
from gpt.cli.explain import attention, flops, lens, mathematics, memory, params, shapes, surprisal, walk
from gpt.cli.explain.source import check_device

VIEWS = (shapes, attention, lens, surprisal, params, flops, memory, walk, mathematics)
"""Each has `add_parser(subparsers)`, which makes its own parser and names its `run`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 2 a user's mistake, 130 stopped."""
    return run_command(lambda: _run(_parse(argv)))


def _run(arguments: argparse.Namespace) -> int:
    check_device(arguments)
    code: int = arguments.run(arguments)
    return code


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
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
