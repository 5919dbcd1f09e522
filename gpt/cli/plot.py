"""`scripts/plot.py`: the loss curves of runs as a picture."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from gpt.cli.common import CommandParser, run_command
from gpt.errors import CheckpointError, GPTError

Curve = list[tuple[float, float]]


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 2 a user's mistake, 130 stopped."""
    arguments = _parse(argv)
    return run_command(lambda: _run(arguments))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = CommandParser(
        "Draw training and validation loss of one or more runs.",
        "python scripts/plot.py runs/shakespeare --output loss.png",
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders")
    parser.add_argument("--output", required=True, metavar="FILE", help="picture to write: .png, .svg or .pdf")
    parser.add_argument("--x", choices=("step", "seconds"), default="step", help="horizontal axis (default: step)")
    return parser.parse_args(argv)


def _run(arguments: argparse.Namespace) -> int:
    try:
        import matplotlib as mpl
    except ImportError:
        raise GPTError('matplotlib is not installed; install it with: pip install "gpt[plot]"') from None
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), dpi=120)
    for name in arguments.runs:
        run = Path(name)
        training, validation = read_curve(run, "train/loss", arguments.x), read_curve(run, "val/loss", arguments.x)
        (line,) = axes.plot(*zip(*training, strict=True), linewidth=0.8, alpha=0.45, label=f"{run.name}: training")
        axes.plot(
            *zip(*validation, strict=True),
            marker="o",
            color=line.get_color(),
            label=f"{run.name}: validation, whole split",
        )
        axes.annotate(
            f"{validation[-1][1]:.3f}", validation[-1], xytext=(0, 8), textcoords="offset points", ha="center"
        )
    axes.set_xlabel("optimizer steps" if arguments.x == "step" else "seconds of training, evaluations included")
    axes.set_ylabel("loss, nats per token")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    figure.tight_layout()
    try:
        figure.savefig(arguments.output)
    except (OSError, ValueError) as error:
        raise GPTError(f"cannot write {arguments.output}: {getattr(error, 'strerror', None) or error}") from None
    print(arguments.output)
    return 0


def read_curve(run: Path, name: str, x: str) -> Curve:
    """Points (step or seconds, value) of one scalar of a run.

    Raises:
        CheckpointError: the run has no such points.
    """
    key = "step" if x == "step" else "speed/seconds"
    try:
        with (run / "metrics.jsonl").open(encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"cannot read the metrics of {run}: {getattr(error, 'strerror', None) or error}"
        ) from None
    points = [(row[key], row[name]) for row in rows if name in row]
    if not points:
        raise CheckpointError(f"{run} has no {name} yet")
    return points
