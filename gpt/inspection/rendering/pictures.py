"""Draw attention with matplotlib, which is imported for the first picture.

Figures are not made by pyplot, which keeps every figure and one backend for the whole process, so that a
notebook's own figures are not affected.
"""

import io
from typing import Any

from gpt.errors import GPTError
from gpt.inspection.views.tokens import PLACEHOLDER, View

COLORS = "viridis"
DOTS_PER_INCH = 120
FONT = "monospace"
MAX_LABELS = 64
"""Most tokens of a matrix with labels; in larger ones they would be illegible."""
MAX_INCHES = 24
"""Most width of the matrices of many heads side by side, unless each would be too small."""
SMALLEST_FONT = 3.0
"""In points; labels that would be smaller are left out."""


def attention_picture(view: View) -> Any:
    """Draw every head of every layer of an `attention_view`."""
    weights = view["weights"].float().cpu().numpy()
    layers, heads = weights.shape[:2]
    count = len(view["labels"])
    single = layers * heads == 1
    side = min(12.0, max(4.0, 0.22 * count)) if single else max(1.7, min(4.0, 0.11 * count, MAX_INCHES / heads))
    figure = _figure(side * heads + 1, side * layers + 0.6)
    grid = figure.subplots(layers, heads, squeeze=False)
    for row, axes_row in enumerate(grid):
        for column, axes in enumerate(axes_row):
            image = axes.imshow(weights[row, column], cmap=COLORS, vmin=0, vmax=1, interpolation="nearest")
            axes.set_title(f"layer {row}, head {column}", fontsize=9 if single else 7)
            _label_matrix(axes, view["labels"], fontsize=min(7.0, 55 * side / count))
            axes.label_outer()
    figure.supxlabel("key (attended to)", fontsize=8)
    figure.supylabel("query", fontsize=8)
    figure.colorbar(image, ax=grid, label="attention weight", fraction=0.04, pad=0.02)
    return figure


def to_png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


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


def _label_matrix(axes: Any, labels: list[str], fontsize: float) -> None:
    """Write the tokens at both axes; where there is no room for them, numbers of positions."""
    axes.tick_params(labelsize=6, length=2, pad=1.5)
    if len(labels) <= MAX_LABELS and fontsize >= SMALLEST_FONT:
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks(range(len(labels)), _drawable(labels), fontsize=fontsize, family=FONT)
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
