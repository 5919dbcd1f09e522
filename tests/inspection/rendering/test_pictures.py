import re
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gpt.errors import GPTError
from gpt.inspection.rendering import pictures
from patience import PATIENCE

Draw = Callable[[int], Any]


def attention_view(length: int, layers: int = 2, heads: int = 3) -> dict[str, Any]:
    weights = torch.rand(layers, heads, length, length).tril()
    return {"labels": ["$", "␣"] * (length // 2) + ["a"] * (length % 2), "weights": weights / weights.sum(-1, True)}


PICTURES: dict[str, Draw] = {
    "head": lambda length: pictures.attention_picture(attention_view(length, 1, 1)),
    "all": lambda length: pictures.attention_picture(attention_view(length)),
}
every_picture = pytest.mark.parametrize("draw", PICTURES.values(), ids=PICTURES.keys())


def size_of(png: bytes) -> tuple[int, int]:
    """Width and height, as its header has them."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


@every_picture
@pytest.mark.parametrize("length", [1, 7])
def test_a_picture_is_always_the_same(draw: Draw, length: int) -> None:
    torch.manual_seed(0)
    first = pictures.to_png(draw(length))
    assert all(200 < pixels < 2000 for pixels in size_of(first))
    torch.manual_seed(0)
    assert pictures.to_png(draw(length)) == first


@pytest.mark.parametrize(
    ("length", "width", "height"),
    [(1, 600, 552), (64, 1560, 1512), (256, 1560, 1512)],  # 4 and 12 inches of 120 dots, and the margins
)
def test_a_matrix_grows_with_its_text_up_to_a_size(length: int, width: int, height: int) -> None:
    assert size_of(pictures.to_png(PICTURES["head"](length))) == (width, height)


@pytest.mark.parametrize("length", [64, 65])
def test_only_labels_that_can_be_read_are_drawn(length: int) -> None:
    axes = pictures.attention_picture(attention_view(length, 1, 1)).axes[0]
    for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
        assert ([label.get_text() for label in labels] == attention_view(length)["labels"]) is (length == 64)


def test_every_matrix_is_drawn_in_its_place_with_tokens_at_the_edges_of_the_grid() -> None:
    view = attention_view(5)
    figure = pictures.attention_picture(view)
    for number, axes in enumerate(figure.axes[:6]):
        layer, head = divmod(number, 3)
        assert axes.get_title() == f"layer {layer}, head {head}"
        assert np.array_equal(axes.images[0].get_array(), view["weights"][layer, head].numpy())
        below, beside = layer == 1, head == 0
        for labels, are_there in ((axes.get_xticklabels(), below), (axes.get_yticklabels(), beside)):
            assert [label.get_text() for label in labels] == (view["labels"] if are_there else [])


def test_pyplot_and_its_backend_are_left_alone() -> None:
    """Asking whether matplotlib is there imports nothing of it that takes long."""
    code = (
        "import sys, torch\n"
        "from gpt.inspection.rendering import pictures\n"
        "pictures.require_matplotlib()\n"
        "assert not {'matplotlib.pyplot', 'matplotlib.figure'} & sys.modules.keys()\n"
        "view = {'labels': ['a'], 'weights': torch.ones(1, 1, 1, 1)}\n"
        "pictures.to_png(pictures.attention_picture(view))\n"
        "sys.exit('matplotlib.pyplot' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=PATIENCE, check=True)


@pytest.mark.filterwarnings("error")
def test_what_the_font_cannot_draw_is_a_placeholder_and_long_labels_are_upright() -> None:
    labels = ["中", "😀", "⏎", "␣", "⇥", "CR", "$", "é"]
    drawn = ["·", "·", "⏎", "␣", "⇥", "CR", "$", "é"]
    matrix = pictures.attention_picture({"labels": labels, "weights": torch.ones(1, 1, 8, 8)})
    columns = matrix.axes[0].get_xticklabels()
    assert [label.get_text() for label in columns] == drawn
    assert {label.get_rotation() for label in columns} == {90.0}
    pictures.to_png(matrix)


@every_picture
def test_a_missing_matplotlib_is_told(draw: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures.require_matplotlib()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for work in (pictures.require_matplotlib, lambda: draw(2)):
        with pytest.raises(GPTError, match=re.escape("glassgpt[plot]")):
            work()
