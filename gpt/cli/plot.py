"""`scripts/plot.py`: plot the loss curves of runs."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from gpt.cli.command import CommandParser, run_command
from gpt.cli.shared_options import to_path


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 2 a user's mistake, 130 stopped."""
    return run_command(lambda: _run(_parse(argv)))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = CommandParser(
        "Plot the training and validation loss of one or more runs.",
        "python scripts/plot.py runs/shakespeare --output loss.png",
    )
    parser.add_argument("runs", nargs="+", type=to_path, metavar="RUN", help="run folders")
    parser.add_argument(
        "--output", type=to_path, required=True, metavar="FILE", help="image to write: .png, .svg or .pdf"
    )
    parser.add_argument("--x", choices=("step", "seconds"), default="step", help="horizontal axis (default: step)")
    return parser.parse_args(argv)


def _run(arguments: argparse.Namespace) -> int:
    output: Path = arguments.output
    from gpt.api.plotting import plot

    plot(*arguments.runs, path=output, x=arguments.x)
    print(output)
    return 0
