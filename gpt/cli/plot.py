"""`gpt plot`: plot the loss curves of runs."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from gpt.cli.shared_options import command, to_path


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=to_path, metavar="RUN", help="run folders")
    image = (
        "image to write: .png, .svg or .pdf "
        "(default: the runs' names with -loss.png, in this folder)"
    )
    parser.add_argument("--output", type=to_path, metavar="FILE", help=image)
    x = "horizontal axis (default: step)"
    parser.add_argument("--x", choices=("step", "seconds"), default="step", help=x)


@command(
    "plot",
    "Plot the training and validation loss of one or more runs.",
    "runs/shakespeare --output loss.png",
    _add_options,
)
def main(arguments: argparse.Namespace) -> int:
    from gpt.api.plotting import plot

    output: Path = arguments.output or default_output(arguments.runs)
    plot(*arguments.runs, path=output, x=arguments.x)
    print(output)
    return 0


def default_output(runs: Sequence[Path]) -> Path:
    """Return the image in the current folder that is named after the runs."""
    names = [run.resolve().name for run in runs]
    return Path("-".join(names) + "-loss.png")
