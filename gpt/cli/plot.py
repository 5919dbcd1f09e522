"""`scripts/plot.py`: plot the loss curves of runs."""

import argparse
import io
from collections.abc import Sequence
from pathlib import Path

from gpt.cli.command import CommandParser, run_command
from gpt.cli.shared_options import to_path
from gpt.errors import CheckpointError, GPTError
from gpt.files import parse_json, write_atomic

Curve = list[tuple[float, float]]
ENDINGS = (".png", ".svg", ".pdf")


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
    try:
        import matplotlib as mpl
    except ImportError:
        raise GPTError('matplotlib is not installed; install it with: pip install "gpt[plot]"') from None
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    output: Path = arguments.output
    if output.suffix.lower() not in ENDINGS or output.is_dir():
        raise GPTError(f"--output {output}: expected a file name that ends with {' or '.join(ENDINGS)}")
    figure, axes = plt.subplots(figsize=(8, 4.5), dpi=120)
    for run in arguments.runs:
        training, validation = read_curve(run, "train/loss", arguments.x), read_curve(run, "val/loss", arguments.x)
        (line,) = axes.plot(*zip(*training, strict=True), linewidth=0.8, alpha=0.45, label=f"{run.name}: training")
        axes.plot(*zip(*validation, strict=True), marker="o", color=line.get_color(), label=f"{run.name}: validation")
        axes.annotate(
            f"{validation[-1][1]:.3f}", validation[-1], xytext=(0, 8), textcoords="offset points", ha="center"
        )
    axes.set_xlabel("optimizer steps" if arguments.x == "step" else "seconds of training, evaluations included")
    axes.set_ylabel("loss, nats per token")
    axes.grid(alpha=0.25)
    for text in axes.legend(frameon=False).get_texts():
        text.set_parse_math(False)  # a folder's name is not a formula
    figure.tight_layout()
    picture = io.BytesIO()
    figure.savefig(picture, format=output.suffix[1:].lower())
    try:
        write_atomic(output, picture.getvalue())
    except OSError as error:
        raise GPTError(f"cannot write {output}: {error.strerror}") from None
    print(output)
    return 0


def read_curve(run: Path, name: str, x: str) -> Curve:
    """Return the points (step or seconds, value) of a metric of a run.

    Raises:
        CheckpointError: the run has no such points.
    """
    key, metrics = "step" if x == "step" else "speed/seconds", run / "metrics.jsonl"
    points: Curve = []
    try:
        lines = metrics.read_bytes().splitlines()
    except OSError as error:
        raise CheckpointError(f"cannot read the metrics of {run}: {error.strerror}") from None
    for number, line in enumerate(lines, start=1):
        try:
            row = parse_json(line)
            if name in row and row[name] is not None:  # null: it was not finite
                points.append((float(row[key]), float(row[name])))
        except (ValueError, KeyError, TypeError, OverflowError):
            raise CheckpointError(f"{metrics}:{number} is not a line of metrics") from None
    if not points:
        raise CheckpointError(f"{run} has no {name} yet")
    return points
