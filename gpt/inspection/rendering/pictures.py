"""Draw views as pictures with matplotlib, which is imported for the first one.

Figures are not made by pyplot, which keeps every figure and one backend for the whole process, so that a
notebook's own figures are not affected.
"""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt.errors import GPTError, InputError
from gpt.inspection.views.tokens import PLACEHOLDER, View, mostly_characters, shorten

COLORS = "viridis"
DOTS_PER_INCH = 120
FONT = "monospace"
MAX_LABELS = 64
"""Most tokens of a matrix with labels; in larger ones they would be illegible."""
MAX_INCHES = 24
"""Most width of the matrices of many heads side by side, unless each would be too small."""
SMALLEST_FONT = 3.0
"""In points; labels that would be smaller are left out."""
MAX_COLUMNS = 256
"""Most tokens up to which a lens or surprisal picture grows with its text and has labels."""


def attention_picture(view: View, layer: int | None = None, head: int | None = None) -> Any:
    """Draw one head, all heads of one layer, or every head of every layer of an `attention_view`.

    Raises:
        GPTError: matplotlib is not installed.
        InputError: there is no such layer or head, or a head is given without a layer.
    """
    weights = view["weights"].float().cpu().numpy()
    if head is not None and layer is None:
        raise InputError(f"head {head} needs a layer; give the layer too")
    layers, heads = _chosen("layer", layer, len(weights)), _chosen("head", head, weights.shape[1])
    single = len(layers) * len(heads) == 1
    count = len(view["labels"])
    side = min(12.0, max(4.0, 0.22 * count)) if single else max(1.7, min(4.0, 0.11 * count, MAX_INCHES / len(heads)))
    figure = _figure(side * len(heads) + 1, side * len(layers) + 0.6)
    grid = figure.subplots(len(layers), len(heads), squeeze=False)
    for row, axes_row in zip(layers, grid, strict=True):
        for column, axes in zip(heads, axes_row, strict=True):
            image = axes.imshow(weights[row, column], cmap=COLORS, vmin=0, vmax=1, interpolation="nearest")
            axes.set_title(f"layer {row}, head {column}", fontsize=9 if single else 7)
            _label_matrix(axes, view["labels"], fontsize=min(7.0, 55 * side / count))
            axes.label_outer()
    figure.supxlabel("key (attended to)", fontsize=8)
    figure.supylabel("query", fontsize=8)
    figure.colorbar(image, ax=grid, label="attention weight", fraction=0.04, pad=0.02)
    return figure


def lens_picture(view: View) -> Any:
    """Draw the most likely next token by layer and position of a `lens_view`, colored by its probability."""
    probabilities = np.array([[cell[0][1] for cell in row] for row in view["top"]])
    rows, columns = probabilities.shape
    narrow = mostly_characters([cell[0][0] for row in view["top"] for cell in row])
    figure = _figure(1.6 + (0.2 if narrow else 0.7) * min(columns, MAX_COLUMNS), 1.4 + 0.3 * rows)
    axes = figure.subplots()
    image = axes.imshow(probabilities, cmap=COLORS, vmin=0, vmax=1, aspect="auto", origin="lower")
    if columns <= MAX_COLUMNS:
        _write_tokens(axes, view)
    axes.set_yticks(range(rows), view["rows"], fontsize=7)
    _label_tokens(axes, view["labels"])
    axes.set_xlabel("after this token; bold: the prediction was right", fontsize=8)
    figure.colorbar(image, ax=axes, label="probability", fraction=0.03, pad=0.02)
    return figure


def _write_tokens(axes: Any, view: View) -> None:
    for row, cells in enumerate(view["top"]):
        drawable = _drawable([shorten(cell[0][0]) for cell in cells])
        for column, cell in enumerate(cells):
            token, probability = cell[0]
            came = token == view["next"][column]
            axes.text(
                column, row, drawable[column], ha="center", va="center", fontsize=7, family=FONT,
                color="black" if probability > 0.6 else "white", fontweight="bold" if came else "normal",
            )  # fmt: skip


def surprisal_picture(view: View) -> Any:
    """Draw the bits of each token of a `surprisal_view`."""
    bits = [0.0 if value is None else value for value in view["bits"]]
    figure = _figure(1.6 + 0.16 * min(len(bits), MAX_COLUMNS), 3)
    axes = figure.subplots()
    axes.bar(range(len(bits)), bits, color="#31688e")
    axes.axhline(view["mean_bits"], color="#b5482a", linewidth=1, label=f"mean {view['mean_bits']:.2f} bits")
    _label_tokens(axes, view["labels"])
    axes.set_ylabel("surprisal, bits")
    axes.margins(x=0.01)
    axes.legend(frameon=False, fontsize=8)
    return figure


def to_png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def to_pixels(figure: Any) -> NDArray[np.uint8]:
    """Return the figure as (height, width, 3) uint8."""
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())[..., :3].copy()


def require_matplotlib() -> None:
    """Raise GPTError where matplotlib is not installed."""
    try:
        import matplotlib as mpl  # noqa: F401
    except ImportError:
        raise GPTError("matplotlib is not installed; install it with: pip install 'glassgpt[plot]'") from None


def _figure(width: float, height: float) -> Any:
    """Return an empty figure, sized in inches, that pyplot does not manage."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _chosen(name: str, index: int | None, size: int) -> Sequence[int]:
    if index is None:
        return range(size)
    if not 0 <= index < size:
        raise InputError(f"there is no {name} {index}; they go from 0 to {size - 1}")
    return [index]


def _label_matrix(axes: Any, labels: list[str], fontsize: float) -> None:
    """Write the tokens at both axes; where there is no room for them, numbers of positions."""
    axes.tick_params(labelsize=6, length=2, pad=1.5)
    if len(labels) <= MAX_LABELS and fontsize >= SMALLEST_FONT:
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks(range(len(labels)), _drawable(labels), fontsize=fontsize, family=FONT)
        _turn_long(axes, labels)


def _label_tokens(axes: Any, labels: list[str]) -> None:
    if len(labels) <= MAX_COLUMNS:
        axes.set_xticks(range(len(labels)), _drawable(labels), fontsize=9, family=FONT)
        axes.tick_params(axis="x", length=0)
        _turn_long(axes, labels)


def _turn_long(axes: Any, labels: list[str]) -> None:
    """Turn the labels of columns upright where one of them is longer than a column is wide."""
    if max(map(len, labels)) > 1:
        axes.tick_params(axis="x", labelrotation=90)


def _drawable(labels: list[str]) -> list[str]:
    """Return the labels, with the placeholder for those that the font lacks."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    font = get_font(findfont(FontProperties(family=FONT)))
    there = [all(font.get_char_index(ord(char)) for char in label) for label in labels]
    return [label if drawn else PLACEHOLDER for label, drawn in zip(labels, there, strict=True)]
