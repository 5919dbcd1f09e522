"""`gpt plot`: plot the loss curves of runs."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from gpt.cli.shared_options import add_runs_option, command, to_path


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", nargs="+", type=to_path, metavar="RUN", help="names of runs, or run folders"
    )
    add_runs_option(parser)
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
    "shakespeare --output loss.png",
    _add_options,
)
def main(arguments: argparse.Namespace) -> int:
    from gpt.api.plotting import plot
    from gpt.checkpoint import find_run

    folders = [find_run(path, arguments.runs) for path in arguments.paths]
    output: Path = arguments.output or default_output(folders)
    plot(*folders, path=output, x=arguments.x)
    print(output)
    return 0


def default_output(runs: Sequence[Path]) -> Path:
    """Return the image in the current folder that is named after the runs."""
    names = [run.resolve().name for run in runs]
    return Path("-".join(names) + "-loss.png")
