"""`gpt plot`: plot the loss curves of runs."""

import argparse

from gpt.cli.shared_options import command, to_path


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=to_path, metavar="RUN", help="run folders")
    image = "image to write: .png, .svg or .pdf"
    parser.add_argument("--output", type=to_path, required=True, metavar="FILE", help=image)
    parser.add_argument("--x", choices=("step", "seconds"), default="step", help="horizontal axis (default: step)")


@command(
    "plot",
    "Plot the training and validation loss of one or more runs.",
    "runs/shakespeare --output loss.png",
    _add_options,
)
def main(arguments: argparse.Namespace) -> int:
    from gpt.api.plotting import plot

    plot(*arguments.runs, path=arguments.output, x=arguments.x)
    print(arguments.output)
    return 0
