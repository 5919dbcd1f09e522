"""The command line of `scripts/bench.py`: which measurement was asked for."""

import argparse
from collections.abc import Sequence

from benchmarks import busy, check, decode, race, recipe, start, step
from gpt.cli.common import CommandParser, add_command, run_command

MEASUREMENTS = (recipe, step, busy, race)
"""Of training. Each has `add_parser(subparsers)`, which makes its own parser and names its `run`."""

OTHERS = (decode, start, check)

EXAMPLE = "python scripts/bench.py train step --config configs/shakespeare.yaml --variants native,torch"


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 `check` found a slow kernel, 2 a user's mistake, 130 stopped."""
    return run_command(lambda: _run(_parse(argv)))


def _run(arguments: argparse.Namespace) -> int:
    code: int = arguments.run(arguments)
    return code


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = CommandParser("Measure speed. Each measurement ends with one JSON object in a line.", EXAMPLE)
    kinds = parser.add_subparsers(required=True, metavar="WHAT", title="what is measured (each has its own --help)")
    train = add_command(kinds, "train", "Measure training.", EXAMPLE)
    measurements = train.add_subparsers(
        required=True, metavar="MEASUREMENT", title="measurements (each has its own --help)"
    )
    for measurement in MEASUREMENTS:
        measurement.add_parser(measurements)
    for measurement in OTHERS:
        measurement.add_parser(kinds)
    return parser.parse_args(argv)
