"""The losses of a run as a picture: SVG inside a page, with no library."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

Point = tuple[int, float]
"""A step and a loss, in nats per token."""

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 48, 12, 14, 40
MAX_POINTS = 500
COLORS = ("#3b8eea", "#e8710a")
"""Blue and orange: apart for color-blind readers, and at least 3:1 against white and against black."""


def loss_curves(training: Sequence[Point], validation: Sequence[Point], last_step: int) -> str:
    """Draw the training loss as a line, and the validation loss as a line with dots, up to `last_step`.

    Text and axes have the color of the text around the picture, and there is no background, so that it fits a light and
    a dark page. A long curve is thinned, and values that are not finite are left out.
    """
    curves = [
        [point for point in curve if math.isfinite(point[1])]
        for curve in (_thinned(training), validation)
    ]
    losses = [loss for curve in curves for _, loss in curve]
    ticks = _ticks(min(losses, default=0.0), max(losses, default=1.0), 5)
    low, high = ticks[0], ticks[-1]
    last = max([1, last_step, *(step for curve in curves for step, _ in curve)])

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / last

    def y(loss: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - loss) / (high - low)

    parts = [_axis_of_losses(ticks, y), _axis_of_steps(last, x)]
    for curve, color, name in zip(curves, COLORS, ("training", "validation"), strict=True):
        points = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in curve)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        if name == "validation":
            parts += [
                f'<circle cx="{x(step):.1f}" cy="{y(loss):.1f}" r="3.5" fill="{color}">'
                f"<title>step {step:,}: validation loss {loss:.4f} nats per token</title></circle>"
                for step, loss in curve
            ]
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(_described(curves))}" '
        f'style="display:block;width:100%;max-width:{WIDTH}px;height:auto;font:12px system-ui,sans-serif">'
        f"{''.join(parts)}{_legend(curves)}</svg>"
    )


def points_of(rows: Iterable[Mapping[str, Any]], name: str) -> list[Point]:
    """Return the steps and values of one name, such as `val/loss`, in rows of metrics.jsonl; without null."""
    return [(row["step"], row[name]) for row in rows if row.get(name) is not None]


def _thinned(curve: Sequence[Point]) -> list[Point]:
    """Return at most about `MAX_POINTS` points: the means of neighbors, which also smooths the noise of batches."""
    size = max(1, math.ceil(len(curve) / MAX_POINTS))
    groups = [curve[begin : begin + size] for begin in range(0, len(curve), size)]
    return [(group[-1][0], sum(loss for _, loss in group) / len(group)) for group in groups]


def _ticks(low: float, high: float, most: int) -> list[float]:
    """Return round numbers from at or below `low` to at or above `high`, at most `most` + 2 of them."""
    span = max(high - low, 1e-3)
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power * most >= span)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def _axis_of_losses(ticks: Sequence[float], y: Callable[[float], float]) -> str:
    decimals = max(0, -math.floor(math.log10(ticks[1] - ticks[0]) + 1e-9))
    lines = [
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="currentColor" '
        f'opacity="0.18"/>{_text(LEFT - 8, y(tick) + 4, f"{tick:.{decimals}f}", "end")}'
        for tick in ticks
    ]
    return "".join(lines)


def _axis_of_steps(last: int, x: Callable[[float], float]) -> str:
    ticks = [tick for tick in _ticks(0, last, 6) if tick <= last and tick == int(tick)]
    return "".join(
        _text(x(tick), HEIGHT - BOTTOM + 18, f"{int(tick):,}", "middle") for tick in ticks
    )


def _legend(curves: Sequence[Sequence[Point]]) -> str:
    names = ("training loss", "validation loss")
    parts = [_text(LEFT, HEIGHT - 6, "nats per token, by step", "start")]
    for place, (curve, color, name) in enumerate(zip(curves, COLORS, names, strict=True)):
        right = WIDTH - RIGHT - 160 * (1 - place)
        value = f"{name} {curve[-1][1]:.3f}" if curve else name
        parts.append(
            f'<line x1="{right - 148}" x2="{right - 130}" y1="{HEIGHT - 10}" y2="{HEIGHT - 10}" stroke="{color}" '
            f'stroke-width="3"/>{_text(right - 124, HEIGHT - 6, value, "start")}'
        )
    return "".join(parts)


def _described(curves: Sequence[Sequence[Point]]) -> str:
    last = [f"{curve[-1][1]:.3f}" if curve else "not known" for curve in curves]
    return f"losses by step in nats per token; last training loss {last[0]}, last validation loss {last[1]}"


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor">{escape(text)}</text>'
