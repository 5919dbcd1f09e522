"""The model as one picture in a browser: by keyboard and mouse, folded where it is long, and without a layout shift."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from browser import Page
from gpt.data.tokenizers import CharTokenizer
from gpt.inspection.rendering.pages import render_page
from gpt.inspection.views.picture import picture_view
from tiny import sharp_model

TEXT = "the key,\nthe door"
CHARS = CharTokenizer(TEXT)
Open = Callable[..., Page]
CHOSEN = "[...document.querySelectorAll('.picture-line .token')].findIndex((item) => item.ariaCurrent)"
PLACES = (
    "[...document.querySelectorAll('.part, .head, .bars, .picture-about')]"
    ".map((item) => [item.offsetTop, item.offsetHeight])"
)
ABOUT = "document.querySelector('.picture-about h2').textContent"
STAGE = "document.querySelector('.picture-flow [aria-current]').closest('.picture-stage').dataset.name"
EDGE = "document.querySelector('{}').getBoundingClientRect().{}"
PART = "document.querySelector('.picture-flow [aria-current] .name').firstChild.textContent"


def longer(value: object, word: str) -> object:
    """Return labels, wherever they are, with the word in place of 'k'."""
    if isinstance(value, (list, tuple)):
        return [longer(entry, word) for entry in value]
    return word if word and value == "k" else value


@pytest.fixture
def open_picture(tmp_path: Path, visit: Open) -> Open:
    def show(word: str = "", **options: object) -> Page:
        model = sharp_model(vocab_size=CHARS.vocab_size, block_size=len(TEXT), **options)
        view = picture_view(model, CHARS, torch.tensor(CHARS.encode(TEXT).tolist()))
        for key in ("labels", "lens", "top"):
            view[key] = longer(view[key], word)
        file = tmp_path / "picture.html"
        file.write_text(render_page("picture", view, "A title", "a note"), encoding="utf-8")
        return visit(file.as_uri(), width=1000)

    return show


def test_arrow_keys_choose_the_token_and_the_part_and_nothing_moves(open_picture: Open) -> None:
    page = open_picture()
    assert (page.run(CHOSEN), page.run(PART)) == (len(TEXT) - 1, "text")
    assert page.text(".ids .value") == f"id {CHARS.encode('r').tolist()[0]}"
    places, bars = page.run(PLACES), page.text(".bars")
    page.run("document.querySelector('.part').focus()")
    page.press("ArrowLeft")
    assert page.run(CHOSEN) == len(TEXT) - 2
    assert page.text(".ids .value") == f"id {CHARS.encode('o').tolist()[0]}"
    assert page.text(".bars") != bars
    assert page.run(PLACES) == places
    for _ in range(5):
        page.press("ArrowDown")
    assert page.run(PART) == "attention"
    assert "a query of 'o' with the keys of the 16 characters so far" in page.text(".picture-about p")
    page.press("ArrowDown")
    assert page.text(".picture-about h2") == "layer 0, head 0"
    painted = (
        "[...document.querySelectorAll('.picture-line .token')].map((item) => Boolean(item.style.backgroundColor))"
    )
    assert page.run(painted) == [True] * 16 + [False]
    assert page.console == []


@pytest.mark.parametrize("width", [400, 1000])
def test_nothing_moves_where_labels_are_long_and_the_chosen_token_is_seen(open_picture: Open, width: int) -> None:
    page = open_picture("representation")
    page.send(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    )
    places = page.run(PLACES)
    for token in range(len(TEXT)):
        page.run(f"document.querySelectorAll('.picture-line .token')[{token}].click()")
        assert page.run(PLACES) == places
        for item, box in ((".ids .chosen", ".ids .middle"), (".picture-line [aria-current]", ".picture-line")):
            left, right = ([page.run(EDGE.format(part, side)) for part in (item, box)] for side in ("left", "right"))
            assert left[0] >= left[1] - 0.5
            assert right[0] <= right[1] + 0.5
    assert page.run("document.documentElement.scrollWidth") <= width


def test_many_heads_are_folded_and_open_on_the_way_down(open_picture: Open) -> None:
    page = open_picture(n_layer=10)
    opened = "[...document.querySelectorAll('.block')].map((block) => block.open)"
    assert page.run(opened) == [True] + [False] * 9
    page.run("document.querySelectorAll('.picture-stage')[1].querySelector('.picture-stage > .stream').click()")
    assert page.text(".picture-about h2") == "after block 0"
    page.press("ArrowDown")
    assert page.run(opened) == [True] * 2 + [False] * 8
    assert page.text(".picture-about h2") == "norm, block 1"


def test_the_page_tells_its_story_while_it_is_scrolled(open_picture: Open) -> None:
    page = open_picture()
    assert page.text(".picture-guess").startswith("text, so far")
    page.run("document.querySelectorAll('.block')[1].querySelector('.addition').scrollIntoView({ block: 'center' })")
    page.wait_for("document.querySelector('.picture-guess').textContent.startsWith('block 1, so far')")
    page.wait_for(f"{STAGE} === 'block 1' && {ABOUT}.includes('1')")
    page.run("scrollTo(0, document.body.scrollHeight)")
    page.wait_for("document.querySelector('.picture-guess').textContent.startsWith('logits')")
    page.wait_for(f"{STAGE} === 'logits' && {ABOUT} === {PART}")
    page.run("document.querySelector('.part').click()")
    page.run("scrollTo(0, 0)")
    page.wait_for("!document.querySelector('.picture-guess').textContent.startsWith('logits')")
    page.run("scrollTo(0, document.body.scrollHeight)")
    page.wait_for(f"{STAGE} === 'logits' && {ABOUT} === {PART}")
