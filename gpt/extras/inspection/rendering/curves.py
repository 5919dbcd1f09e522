"""The losses of a run as a picture: SVG inside a page, with no library."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

Point = tuple[int, float]
"""A step and a loss, in nats per token."""

WIDTH = 640
HEIGHT = 300
LEFT = 48
RIGHT = 12
TOP = 14
BOTTOM = 40
"""The margins around the curves hold the numbers of the axes, and below them the legend."""
ENTRY_WIDTH = 160
"""An entry of the legend: a short line in the color of the curve, then a text."""
MAX_POINTS = 500
"""Points of a curve: about as many as the picture has pixels side by side."""
COLORS = ("#3b8eea", "#e8710a")
"""Blue and orange: color-blind readers can tell them apart.

Both have a contrast of at least 3:1 against white and against black.
"""
NAMES = ("training", "validation")


@dataclass(frozen=True)
class _Scales:
    """Where steps and losses stand in the picture, in pixels from its upper left corner."""

    last_step: int
    lowest: float  # the loss at the bottom
    highest: float  # the loss at the top

    def x(self, step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / self.last_step

    def y(self, loss: float) -> float:
        height = HEIGHT - TOP - BOTTOM
        return TOP + height * (self.highest - loss) / (self.highest - self.lowest)


def loss_curves(training: Sequence[Point], validation: Sequence[Point], last_step: int) -> str:
    """Draw the training loss as a line, and the validation loss as a line with dots.

    The axis of steps ends at `last_step`. Text and axes have the color of the text around the
    picture, and there is no background, so that it fits a light and a dark page. A long curve is
    thinned, and values that are not finite are left out.
    """
    curves = [_finite(_thinned(training)), _finite(validation)]
    steps = []
    losses = []
    for curve in curves:
        steps += [step for step, _ in curve]
        losses += [loss for _, loss in curve]
    ticks = _ticks(min(losses, default=0.0), max(losses, default=1.0), 5)
    last = max([1, last_step, *steps])
    scales = _Scales(last, lowest=ticks[0], highest=ticks[-1])

    parts = [_loss_axis(ticks, scales), _step_axis(scales)]
    for curve, color, name in zip(curves, COLORS, NAMES, strict=True):
        parts.append(_line(curve, color, scales))
        if name == "validation":
            parts += [_dot(step, loss, color, scales) for step, loss in curve]
    style = (
        f"display:block;width:100%;max-width:{WIDTH}px;height:auto;font:12px system-ui,sans-serif"
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(_spoken(curves))}" '
        f'style="{style}">{"".join(parts)}{_legend(curves)}</svg>'
    )


def points_of(rows: Iterable[Mapping[str, Any]], name: str) -> list[Point]:
    """Return the steps and values of one name, such as `val/loss`, in rows of metrics.jsonl.

    Rows without a value are left out.
    """
    return [(row["step"], row[name]) for row in rows if row.get(name) is not None]


def _finite(curve: Sequence[Point]) -> list[Point]:
    return [point for point in curve if math.isfinite(point[1])]


def _thinned(curve: Sequence[Point]) -> list[Point]:
    """Return at most about `MAX_POINTS` points.

    Each is the mean of neighbors, which also smooths the noise of the batches.
    """
    size = max(1, math.ceil(len(curve) / MAX_POINTS))
    points = []
    for start in range(0, len(curve), size):
        group = curve[start : start + size]
        last_step = group[-1][0]
        points.append((last_step, sum(loss for _, loss in group) / len(group)))
    return points


def _ticks(low: float, high: float, most: int) -> list[float]:
    """Return round numbers from at or below `low` to at or above `high`.

    They are multiples of 1, 2 or 5 times a power of ten. There are at least two, and at most
    `most` + 2 of them, since the first and the last may stand outside.
    """
    span = max(high - low, 1e-3)  # equal losses have an axis, too
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power * most >= span)
    first = math.floor(low / step)
    last = max(math.ceil(high / step), first + 1)
    return [number * step for number in range(first, last + 1)]


def _loss_axis(ticks: Sequence[float], scales: _Scales) -> str:
    """Draw a horizontal line for each loss of `ticks`, with its number on the left."""
    # There are as many decimals as tell the ticks apart. 1e-9 is against an error of rounding: the
    # logarithm of a step of 0.1 may be a bit less than -1, which would round down to -2.
    power = math.floor(math.log10(ticks[1] - ticks[0]) + 1e-9)
    decimals = max(0, -power)
    parts = []
    for tick in ticks:
        y = scales.y(tick)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
            'stroke="currentColor" opacity="0.18"/>'
        )
        parts.append(_text(LEFT - 8, y + 4, f"{tick:.{decimals}f}", "end"))
    return "".join(parts)


def _step_axis(scales: _Scales) -> str:
    """Write the numbers of some steps below the curves."""
    parts = []
    for tick in _ticks(0, scales.last_step, 6):
        is_step = tick == int(tick)  # the ticks of a run of a few steps have fractions
        if is_step and tick <= scales.last_step:
            y = HEIGHT - BOTTOM + 18
            parts.append(_text(scales.x(tick), y, f"{int(tick):,}", "middle"))
    return "".join(parts)


def _line(curve: Sequence[Point], color: str, scales: _Scales) -> str:
    points = " ".join(f"{scales.x(step):.1f},{scales.y(loss):.1f}" for step, loss in curve)
    return f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>'


def _dot(step: int, loss: float, color: str, scales: _Scales) -> str:
    """Draw a dot, whose numbers a browser shows under the pointer."""
    return (
        f'<circle cx="{scales.x(step):.1f}" cy="{scales.y(loss):.1f}" r="3.5" fill="{color}">'
        f"<title>step {step:,}: validation loss {loss:.4f} nats per token</title></circle>"
    )


def _legend(curves: Sequence[Sequence[Point]]) -> str:
    """Write what the curves are, each with its color and its last loss, below the steps."""
    baseline = HEIGHT - 6
    parts = [_text(LEFT, baseline, "nats per token, by step", "start")]
    # The last entry ends where the curves end.
    first_x = WIDTH - RIGHT - ENTRY_WIDTH * len(curves)
    for place, (curve, color, name) in enumerate(zip(curves, COLORS, NAMES, strict=True)):
        entry = f"{name} loss"
        if curve:
            _, last_loss = curve[-1]
            entry += f" {last_loss:.3f}"
        x = first_x + ENTRY_WIDTH * place + 12
        y = baseline - 4  # half as high as a small letter
        parts.append(
            f'<line x1="{x}" x2="{x + 18}" y1="{y}" y2="{y}" stroke="{color}" stroke-width="3"/>'
        )
        parts.append(_text(x + 24, baseline, entry, "start"))
    return "".join(parts)


def _spoken(curves: Sequence[Sequence[Point]]) -> str:
    """Return what a screen reader says of the picture."""
    last_losses = [f"{curve[-1][1]:.3f}" if curve else "not known" for curve in curves]
    return (
        f"losses by step in nats per token; last training loss {last_losses[0]}, "
        f"last validation loss {last_losses[1]}"
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    """Write a text; `anchor` says which part of it stands at x: its start, middle or end."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor">'
        f"{escape(text)}</text>"
    )
