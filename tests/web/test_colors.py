"""Colors of probabilities, under Node."""

import itertools

import pytest

from interop.node import run_page

PAINTED = """
globalThis.matchMedia = () => ({ matches: DARK, addEventListener() {} });
return Array.from({ length: 201 }, (_, step) => {
  const style = {};
  paint({ style }, step / 200);
  return [style.color, colorOf(step / 200)];
});
"""


def luminance(channels: list[int]) -> float:
    """The relative luminance of WCAG 2."""
    shares = [value / 255 for value in channels]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("dark", "page"), [(False, 1.0), (True, luminance([0x11, 0x14, 0x1A]))])
def test_a_text_is_legible_on_every_color_and_what_is_certain_is_near_the_page(dark: bool, page: float) -> None:
    painted = run_page("", PAINTED.replace("DARK", str(dark).lower()))
    found = [luminance(channels) for _, channels in painted]
    for ink, value in zip((ink for ink, _ in painted), found, strict=True):
        contrast = 1.05 / (value + 0.05) if ink == "#fff" else (value + 0.05) / 0.05
        assert contrast >= 4.5
    lighter, darker = max(found[0], page), min(found[0], page)
    assert (lighter + 0.05) / (darker + 0.05) < 1.2
    steps = [after - before for before, after in itertools.pairwise(found)]
    assert all(step > 0 for step in steps) == dark
    assert all(step < 0 for step in steps) != dark
