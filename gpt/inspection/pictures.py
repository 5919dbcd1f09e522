"""The views as pictures, drawn by matplotlib, which is imported when the first one is drawn."""

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt.errors import GPTError
from gpt.inspection.views import View

COLOURS = "viridis"
DOTS_PER_INCH = 120
MOST_LABELS = 64
"""Longer texts get no label per token, since none could be read."""


def attention_picture(view: View, layer: int | None = None, head: int | None = None) -> Any:
    """A figure of one head, of all heads of one layer, or of every head of every layer.

    Args:
        view: of `attention_view`.
        layer: None: all of them, one a row.
        head: needs `layer`; None: all of them, side by side.
    """
    weights = view["weights"].float().cpu().numpy()
    layers = range(len(weights)) if layer is None else [layer]
    heads = range(weights.shape[1]) if head is None else [head]
    single = len(layers) * len(heads) == 1
    side = min(12.0, max(4.0, 0.22 * len(view["labels"]))) if single else 1.7
    figure, grid = _pyplot().subplots(
        len(layers),
        len(heads),
        figsize=(side * len(heads) + 1, side * len(layers) + 0.6),
        dpi=DOTS_PER_INCH,
        squeeze=False,
        layout="constrained",
    )
    for row, axes_row in zip(layers, grid, strict=True):
        for column, axes in zip(heads, axes_row, strict=True):
            image = axes.imshow(weights[row, column], cmap=COLOURS, vmin=0, vmax=1, interpolation="nearest")
            axes.set_title(f"layer {row}, head {column}", fontsize=9 if single else 7)
            axes.set_xticks([])
            axes.set_yticks([])
    if single:
        _label_matrix(grid[0][0], view["labels"])
    figure.colorbar(image, ax=grid, label="attention weight", fraction=0.04, pad=0.02)
    return figure


def lens_picture(view: View) -> Any:
    """A figure of layers against positions: the most likely next token, coloured by its probability."""
    probabilities = np.array([[cell[0][1] for cell in row] for row in view["top"]])
    rows, columns = probabilities.shape
    figure, axes = _pyplot().subplots(
        figsize=(1.6 + 0.2 * columns, 1.4 + 0.3 * rows), dpi=DOTS_PER_INCH, layout="constrained"
    )
    image = axes.imshow(probabilities, cmap=COLOURS, vmin=0, vmax=1, aspect="auto", origin="lower")
    for row in range(rows):
        for column in range(columns):
            token, probability = view["top"][row][column][0]
            came = token == view["next"][column]
            axes.text(
                column, row, token, ha="center", va="center", fontsize=7, family="monospace",
                color="black" if probability > 0.6 else "white", fontweight="bold" if came else "normal",
            )  # fmt: skip
    axes.set_yticks(range(rows), view["rows"], fontsize=7)
    axes.set_xticks(range(columns), view["labels"], fontsize=7, family="monospace")
    axes.set_xlabel("after this token; bold: the prediction is what came", fontsize=8)
    figure.colorbar(image, ax=axes, label="probability", fraction=0.03, pad=0.02)
    return figure


def surprisal_picture(view: View) -> Any:
    """A figure of bits by token."""
    bits = [0.0 if value is None else value for value in view["bits"]]
    figure, axes = _pyplot().subplots(figsize=(1.6 + 0.16 * len(bits), 3), dpi=DOTS_PER_INCH, layout="constrained")
    axes.bar(range(len(bits)), bits, color="#31688e")
    axes.axhline(view["mean_bits"], color="#b5482a", linewidth=1, label=f"mean {view['mean_bits']:.2f} bits")
    axes.set_xticks(range(len(bits)), view["labels"], fontsize=7, family="monospace")
    axes.set_ylabel("surprisal, bits")
    axes.margins(x=0.01)
    axes.legend(frameon=False, fontsize=8)
    return figure


def to_png(figure: Any) -> bytes:
    """The figure as a PNG file; it is closed."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    _pyplot().close(figure)
    return buffer.getvalue()


def to_pixels(figure: Any) -> NDArray[np.uint8]:
    """The figure as (height, width, 3) uint8; it is closed."""
    figure.canvas.draw()
    pixels = np.asarray(figure.canvas.buffer_rgba())[..., :3].copy()
    _pyplot().close(figure)
    return pixels


def require_matplotlib() -> None:
    """Raise unless pictures can be drawn.

    Raises:
        GPTError: matplotlib is not installed.
    """
    _pyplot()


def _pyplot() -> Any:
    try:
        import matplotlib as mpl
    except ImportError:
        raise GPTError('matplotlib is not installed; install it with: pip install "gpt[plot]"') from None
    mpl.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _label_matrix(axes: Any, labels: list[str]) -> None:
    axes.set_xlabel("key: looked at")
    axes.set_ylabel("query: looks")
    if len(labels) <= MOST_LABELS:
        axes.set_xticks(range(len(labels)), labels, fontsize=7, family="monospace")
        axes.set_yticks(range(len(labels)), labels, fontsize=7, family="monospace")
        axes.xaxis.set_ticks_position("top")
        axes.xaxis.set_label_position("top")
