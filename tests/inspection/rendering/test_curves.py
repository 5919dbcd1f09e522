"""The loss curves as XML: what is drawn where."""

import math
import re
from xml.etree import ElementTree

from gpt.inspection.rendering.curves import MAX_POINTS, Point, loss_curves

TRAINING: list[Point] = [(1, 4.0), (2, 3.0), (4, 2.0)]
VALIDATION: list[Point] = [(0, 4.2), (4, 1.5)]


def lines_of(svg: str) -> list[list[tuple[float, float]]]:
    """The points of each curve, in pixels."""
    found = ElementTree.fromstring(svg).findall("polyline")
    return [
        [(float(x), float(y)) for x, y in re.findall(r"([\d.]+),([\d.]+)", line.get("points", ""))] for line in found
    ]


def texts_of(svg: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(svg).findall("text")]


def test_a_lower_loss_is_lower_and_a_later_step_is_further_right() -> None:
    svg = loss_curves(TRAINING, VALIDATION, 4)
    training, validation = lines_of(svg)
    assert [x for x, _ in training] == sorted(x for x, _ in training)
    assert [y for _, y in training] == sorted(y for _, y in training)
    assert training[-1][0] == validation[-1][0]  # both at step 4
    assert training[-1][1] < validation[-1][1]  # pixels count from the top, and 1.5 is below 2.0
    assert {"training loss 2.000", "validation loss 1.500"} <= set(texts_of(svg))
    assert lines_of(loss_curves(TRAINING, [], 8))[0][-1][0] < training[-1][0]  # room for the rest of the run
    assert lines_of(loss_curves([], [], 100)) == [[], []]


def test_a_long_curve_is_thinned_to_means() -> None:
    noisy: list[Point] = [(step, 2.0 + (-1) ** step) for step in range(20 * MAX_POINTS)]
    (line, _) = lines_of(loss_curves(noisy, [], len(noisy)))
    assert len(line) == MAX_POINTS
    assert len({y for _, y in line}) == 1


def test_values_that_are_not_finite_are_left_out() -> None:
    (line, _) = lines_of(loss_curves([(1, 2.0), (2, math.nan), (3, math.inf), (4, 1.0)], [], 4))
    assert len(line) == 2


def test_small_differences_have_ticks_that_differ() -> None:
    ticks = [text for text in texts_of(loss_curves([(1, 1.4201), (2, 1.4209)], [], 2)) if text.startswith("1.4")]
    assert len(ticks) == len(set(ticks)) >= 3
