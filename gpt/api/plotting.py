"""Plot the loss curves of runs."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gpt.api.metrics import read_metrics
from gpt.system.errors import CheckpointError, GPTError
from gpt.system.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class HasFolder(Protocol):
    """A `Run`."""

    @property
    def folder(self) -> Path: ...


ENDINGS = (".png", ".svg", ".pdf")
AXES = {
    "step": ("step", "optimizer steps"),
    "seconds": ("speed/seconds", "seconds of training, evaluations included"),
}
"""By the value of `x`: the name of a metric, and its description."""


def plot(*runs: HasFolder | str | Path, path: str | Path | None = None, x: str = "step") -> Figure:
    """Plot the training and validation loss of runs, in nats per token.

    Args:
        runs: runs, or their folders.
        path: image to write: .png, .svg or .pdf; None: none.
        x: horizontal axis, step or seconds.

    Returns:
        A figure of matplotlib, which no backend shows by itself.

    Raises:
        GPTError: matplotlib is not installed, a run has no losses yet, or the image cannot be written.
    """
    if not runs:
        raise GPTError("plot needs at least one run")
    if x not in AXES:
        raise GPTError(f"x is {x!r}, expected one of {', '.join(AXES)}")
    output = None if path is None else _checked(Path(path))
    try:
        from matplotlib.figure import (
            Figure,
        )  # not by pyplot, which would keep the figure and choose a backend
    except ImportError:
        raise GPTError(
            "matplotlib is not installed; install it with: pip install 'glassgpt[plot]'"
        ) from None

    figure = Figure(figsize=(8, 4.5), dpi=120)
    axes = figure.subplots()
    for number, run in enumerate(runs):
        _draw(axes, Path(run) if isinstance(run, str | Path) else run.folder, x, f"C{number}")
    axes.set_xlabel(AXES[x][1])
    axes.set_ylabel("loss, nats per token")
    axes.grid(alpha=0.25)
    for text in axes.legend(frameon=False).get_texts():
        text.set_parse_math(False)  # a folder's name is not a formula
    figure.tight_layout()
    if output is not None:
        picture = io.BytesIO()
        figure.savefig(picture, format=output.suffix[1:].lower())
        try:
            write_atomic(output, picture.getvalue())
        except OSError as error:
            raise GPTError(f"cannot write {path}: {error.strerror}") from None
    return figure


def _draw(axes: Axes, run: Path, x: str, color: str) -> None:
    rows, (key, _) = read_metrics(run), AXES[x]
    training, validation = (
        [(row[key], row[name]) for row in rows if row.get(name) is not None and key in row]
        for name in ("train/loss", "val/loss")
    )
    if not training and not validation:
        raise CheckpointError(f"{run} has no losses yet")
    if training:
        axes.plot(
            *zip(*training, strict=True),
            linewidth=0.8,
            alpha=0.45,
            color=color,
            label=f"{run.name}: training",
        )
    if validation:
        axes.plot(
            *zip(*validation, strict=True), marker="o", color=color, label=f"{run.name}: validation"
        )
        last = validation[-1]
        axes.annotate(
            f"{last[1]:.3f}", last, xytext=(0, 8), textcoords="offset points", ha="center"
        )


def _checked(path: Path) -> Path:
    if path.suffix.lower() not in ENDINGS or path.is_dir():
        raise GPTError(
            f"cannot plot into {path}: expected a file name that ends with {' or '.join(ENDINGS)}"
        )
    return path
