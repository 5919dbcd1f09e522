import struct
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gpt.errors import GPTError
from gpt.inspection import pictures

Draw = Callable[[int], Any]


def attention_view(length: int, layers: int = 2, heads: int = 3) -> dict[str, Any]:
    weights = torch.rand(layers, heads, length, length).tril()
    return {"labels": ["$", "␣"] * (length // 2) + ["a"] * (length % 2), "weights": weights / weights.sum(-1, True)}


def lens_view(length: int) -> dict[str, Any]:
    return {
        "labels": ["a"] * length,
        "rows": ["embeddings", "block 0"],
        "top": [[[("a", 0.9), ("$", 0.1)]] * length, [[("$", 0.2)]] * length],
        "next": [*["a"] * (length - 1), None],
    }


def surprisal_view(length: int) -> dict[str, Any]:
    return {"labels": ["a"] * length, "bits": [None, *[2.0] * (length - 1)], "mean_bits": 2.0}


PICTURES: dict[str, Draw] = {
    "head": lambda length: pictures.attention_picture(attention_view(length), 1, 2),
    "layer": lambda length: pictures.attention_picture(attention_view(length), 0),
    "all": lambda length: pictures.attention_picture(attention_view(length)),
    "lens": lambda length: pictures.lens_picture(lens_view(length)),
    "surprisal": lambda length: pictures.surprisal_picture(surprisal_view(length)),
}
every_picture = pytest.mark.parametrize("draw", PICTURES.values(), ids=PICTURES.keys())


def size_of(png: bytes) -> tuple[int, int]:
    """Width and height, as its header has them."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


@every_picture
@pytest.mark.parametrize("length", [1, 7])
def test_a_picture_is_a_png_and_always_the_same(draw: Draw, length: int) -> None:
    torch.manual_seed(0)
    first = pictures.to_png(draw(length))
    width, height = size_of(first)
    assert 200 < width < 2000
    assert 200 < height < 2000
    torch.manual_seed(0)
    assert pictures.to_png(draw(length)) == first


@pytest.mark.parametrize(
    ("length", "pixels"),
    [(1, (600, 552)), (64, (1560, 1512)), (256, (1560, 1512))],  # 4 and 12 inches of 120 dots, and the margins
)
def test_a_matrix_grows_with_its_text_up_to_a_size(length: int, pixels: tuple[int, int]) -> None:
    assert size_of(pictures.to_png(PICTURES["head"](length))) == pixels


@pytest.mark.parametrize("length", [64, 65])
def test_only_labels_that_can_be_read_are_drawn(length: int) -> None:
    axes = pictures.attention_picture(attention_view(length), 0, 0).axes[0]
    assert len(axes.get_xticklabels()) == len(axes.get_yticklabels()) == (length if length == 64 else 0)


def test_a_long_text_makes_a_wide_picture() -> None:
    assert size_of(pictures.to_png(pictures.surprisal_picture(surprisal_view(256)))) == (round(120 * 42.56), 360)
    assert size_of(pictures.to_png(pictures.lens_picture(lens_view(64)))) == (round(120 * 14.4), 240)


def test_every_matrix_is_drawn_in_its_place() -> None:
    view = attention_view(5)
    figure = pictures.attention_picture(view)
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles == [f"layer {layer}, head {head}" for layer in (0, 1) for head in (0, 1, 2)]
    for axes, (layer, head) in zip(figure.axes, [(i, j) for i in (0, 1) for j in (0, 1, 2)], strict=False):
        assert np.array_equal(axes.images[0].get_array(), view["weights"][layer, head].numpy())
    one = pictures.attention_picture(view, 1, 2).axes[0]
    assert np.array_equal(one.images[0].get_array(), view["weights"][1, 2].numpy())
    assert [label.get_text() for label in one.get_yticklabels()] == view["labels"]


def test_a_lens_shows_the_likeliest_and_marks_those_that_came() -> None:
    axes = pictures.lens_picture(lens_view(3)).axes[0]
    assert [text.get_text() for text in axes.texts] == ["a", "a", "a", "$", "$", "$"]
    assert [text.get_fontweight() for text in axes.texts] == ["bold", "bold", *["normal"] * 4]
    assert axes.images[0].get_array().tolist() == [[0.9] * 3, [0.2] * 3]


def test_pixels_are_those_of_the_png_size() -> None:
    pixels = pictures.to_pixels(PICTURES["head"](1))
    assert (pixels.shape, pixels.dtype) == ((552, 600, 3), np.uint8)
    assert pixels.std() > 10


def test_figures_are_closed() -> None:
    from matplotlib import pyplot

    pyplot.close("all")
    pictures.to_png(PICTURES["all"](2))
    pictures.to_pixels(PICTURES["lens"](2))
    assert pyplot.get_fignums() == []


@every_picture
def test_a_missing_matplotlib_is_told(draw: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures.require_matplotlib()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for work in (pictures.require_matplotlib, lambda: draw(2)):
        with pytest.raises(GPTError, match=r'pip install "gpt\[plot\]"'):
            work()
