"""Plot the loss curves of runs."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gpt.api.metrics import read_metrics
from gpt.checkpoint import find_run
from gpt.system.errors import CheckpointError, GPTError
from gpt.system.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class HasFolder(Protocol):
    """A `gpt.Run`, which itself imports this module."""

    @property
    def folder(self) -> Path: ...


ENDINGS = (".png", ".svg", ".pdf")
METRICS = {"step": "step", "seconds": "speed/seconds"}
"""Name in metrics.jsonl of each horizontal axis."""
LABELS = {"step": "optimizer steps", "seconds": "seconds of training, evaluations included"}
"""What is written below each horizontal axis."""
Point = tuple[float, float]
"""A value of the horizontal axis, and a loss."""


def plot(*runs: HasFolder | str | Path, path: str | Path | None = None, x: str = "step") -> Figure:
    """Plot the training and validation loss of runs, in nats per token.

    Args:
        runs: runs, their folders, or their names below `runs`.
        path: image to write, which ends with .png, .svg or .pdf; None: no image is written.
        x: horizontal axis, step or seconds.

    Returns:
        A figure of matplotlib, which no backend shows by itself.

    Raises:
        GPTError: matplotlib is not installed, there is no such run, it has no losses, or the image
            cannot be written.
    """
    if not runs:
        raise GPTError("plot needs at least one run")
    if x not in METRICS:
        raise GPTError(f"x is {x!r}, expected one of {', '.join(METRICS)}")
    output = None if path is None else _checked_output(Path(path))
    try:
        # Not pyplot: it would keep the figure until it is closed, and choose a backend.
        from matplotlib.figure import Figure
    except ImportError:
        raise GPTError(
            "matplotlib is not installed; install it with: pip install 'glassgpt[plot]'"
        ) from None

    figure = Figure(figsize=(8, 4.5), dpi=120)
    axes = figure.subplots()
    for number, run in enumerate(runs):
        folder = find_run(Path(run)) if isinstance(run, str | Path) else run.folder
        color = f"C{number}"  # matplotlib's colors in order; it starts again after ten
        _draw_losses(axes, folder, x, color)
    axes.set_xlabel(LABELS[x])
    axes.set_ylabel("loss, nats per token")
    axes.grid(alpha=0.25)
    for text in axes.legend(frameon=False).get_texts():
        text.set_parse_math(False)  # a dollar sign in the name of a run begins no formula
    figure.tight_layout()
    if output is not None:
        _write_image(figure, output)
    return figure


def _draw_losses(axes: Axes, run: Path, x: str, color: str) -> None:
    """Draw the training loss of a run as a pale line, and its validation loss with dots."""
    rows = read_metrics(run)
    training = _points(rows, METRICS[x], "train/loss")
    validation = _points(rows, METRICS[x], "val/loss")
    if not training and not validation:
        raise CheckpointError(f"{run} has no losses yet")
    if training:
        label = f"{run.name}: training"
        steps, losses = zip(*training, strict=True)
        axes.plot(steps, losses, linewidth=0.8, alpha=0.45, color=color, label=label)
    if validation:
        label = f"{run.name}: validation"
        steps, losses = zip(*validation, strict=True)
        axes.plot(steps, losses, marker="o", color=color, label=label)
        last = validation[-1]
        text_offset = (0, 8)  # above the last dot
        axes.annotate(
            f"{last[1]:.3f}", last, xytext=text_offset, textcoords="offset points", ha="center"
        )


def _points(rows: Sequence[dict[str, Any]], x: str, y: str) -> list[Point]:
    """Return the values of two metrics, of the rows that have both."""
    points = []
    for row in rows:
        if x in row and row.get(y) is not None:  # an infinite loss is written as null
            points.append((row[x], row[y]))
    return points


def _write_image(figure: Figure, path: Path) -> None:
    image = io.BytesIO()
    figure.savefig(image, format=path.suffix[1:].lower())
    try:
        write_atomic(path, image.getvalue())
    except OSError as error:
        raise GPTError(f"cannot write {path}: {error.strerror}") from None


def _checked_output(path: Path) -> Path:
    """Return the path of an image; raise GPTError where no image can be written there."""
    if path.suffix.lower() not in ENDINGS or path.is_dir():
        endings = " or ".join(ENDINGS)
        raise GPTError(f"cannot plot into {path}: expected a file name that ends with {endings}")
    return path
