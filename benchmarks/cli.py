"""The command line of `scripts/bench.py`."""

from collections.abc import Sequence

from benchmarks import decode, serve, training_runs, training_step
from gpt.cli.command import CommandParser, run_command
from gpt.cli.shared_options import load_given_plugins

EXAMPLE = "step --config configs/shakespeare.yaml --variants native,torch"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one measurement.

    Return 0, 1 if figures are out of bounds, 2 on a user's mistake, or 130 on Ctrl-C.
    """
    return run_command(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    parser = CommandParser(
        "Measure speed. Each measurement ends with one line of JSON.",
        f"train {EXAMPLE}",
        prog="python scripts/bench.py",
    )
    kinds = parser.add_subparsers(
        required=True, metavar="WHAT", title="what to measure (each has its own --help)"
    )
    train = kinds.add_parser(
        "train", help="Measure training.", description="Measure training.", example=EXAMPLE
    )
    trainings = train.add_subparsers(
        required=True, metavar="MEASUREMENT", title="each has its own --help"
    )
    for module in (training_runs, training_step):
        module.add_parsers(trainings)
    for measurement in (decode, serve):
        measurement.add_parser(kinds)
    arguments = parser.parse_args(argv)
    load_given_plugins(arguments)
    return int(arguments.run(arguments))
