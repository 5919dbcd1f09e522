"""The reading views of the playground in a browser: a text goes in, and what the model does with it comes out."""

import json
from collections.abc import Callable

import pytest
import torch

from browser import CONTROL, Page
from gpt.inspection.views.attention import attention_view, without_heads
from gpt.inspection.views.continuation import continuation_view
from gpt.inspection.views.surprisal import surprisal
from http_server import CharModel

TEXT = "It was the best of rooms"
Open = Callable[..., Page]
IDLE = "/^(Only .*)?$/.test(document.querySelector('.view .status').textContent)"
"""Nothing is computed, or only the end of the text was."""


def read(page: Page, view: str, text: str = TEXT) -> None:
    """Open a view, type a text, and let the model of `char_model` read it, by keyboard."""
    page.wait_for("document.querySelector('#model option') !== null")
    choose_model(page, "second")
    page.run(f"location.hash = '#{view}'")
    page.wait_for(f"document.querySelector('.view-{view} textarea') !== null")
    page.run(f"document.querySelector('.view-{view} textarea').select()")
    page.type(text)
    page.press("Enter", CONTROL)
    page.wait_for(f"document.querySelector('.view-{view} .reading-body').children.length > 1 && {IDLE}")


def choose_model(page: Page, name: str) -> None:
    model = "document.getElementById('model')"
    page.run(f"{model}.value = '{name}'; {model}.dispatchEvent(new Event('change'))")
    page.wait_for("!document.getElementById('facts').textContent.startsWith('Loading')")  # its example is then read


def texts_of(page: Page, selector: str) -> list[str]:
    return page.run(f"[...document.querySelectorAll({json.dumps(selector)})].map((item) => item.textContent)")


@pytest.fixture
def ids(char_model: CharModel) -> torch.Tensor:
    return torch.tensor(char_model[1].encode(TEXT).tolist())


def test_heads_are_ablated_by_keyboard_and_by_mouse(open_page: Open, char_model: CharModel, ids: torch.Tensor) -> None:
    """What is shown beside each other is what both models give; giving all heads back shows the first one again."""
    model, tokenizer = char_model
    page = open_page("attention")
    read(page, "attention")
    done = "document.querySelector('.ablation .status').textContent === ''"
    page.point("document.querySelectorAll('#heads .thumbnail')[0]", click=True)
    page.press("x")
    page.wait_for(f"!document.querySelector('.effects').hidden && {done}")
    assert page.run("document.getElementById('ablate').checked")
    page.point("document.querySelectorAll('#heads .thumbnail')[5]", click=True)
    assert not page.run("document.getElementById('ablate').checked")
    page.point("document.getElementById('ablate')", click=True)
    page.wait_for(f"document.querySelectorAll('.chip').length === 2 && {done}")
    edits = without_heads([(0, 0), (1, 1)])
    whole, left = (surprisal(model, ids, edits=given).mean_bits for given in ({}, edits))
    change = f"{left - whole:+.3f}".replace("-", "\N{MINUS SIGN}")
    assert page.text(".effect") == (
        f"{left:.3f} bits per character without them, {whole:.3f} with all heads ({change})."
    )
    for part, given in (("with-all", {}), ("without", edits)):
        written = continuation_view(model, tokenizer, ids, 48, given)["labels"]
        assert texts_of(page, f".{part} .continued") == written
    layer = attention_view(model, tokenizer, ids, edits)["weights"][1, 1]
    page.point("document.querySelectorAll('#text .token')[23]", click=True)
    assert page.text("#readout").endswith(f": {layer[23].max():.3f}")
    page.point("document.querySelector('.clear')", click=True)
    page.wait_for(f"document.querySelector('.effects').hidden && {done}")
    assert page.run("document.querySelectorAll('.ablated-head').length") == 0
    whole_layer = attention_view(model, tokenizer, ids)["weights"][1, 1]
    page.point("document.querySelectorAll('#text .token')[22]", click=True)
    assert page.text("#readout").endswith(f": {whole_layer[22].max():.3f}")


def test_another_model_reads_the_same_text_and_what_cannot_be_read_is_said(open_page: Open) -> None:
    page = open_page("lens")
    read(page, "lens")
    shown = "document.getElementById('readout').textContent"
    first = page.run(shown)
    choose_model(page, "first")
    page.wait_for(f"{IDLE} && {shown} !== {json.dumps(first)}")
    page.run("document.querySelector('textarea').select()")
    page.type("It \u0416")
    page.press("Enter", CONTROL)
    page.wait_for("document.querySelector('.status.wrong') !== null")
    assert "\u0416" in page.text(".status.wrong")
    assert ["400" in line for line in page.console] == [True]  # the browser itself notes every refused request
    page.console.clear()
    page.run("globalThis.fetch = () => Promise.reject(new TypeError('Failed to fetch'))")
    page.press("Enter", CONTROL)
    page.wait_for("document.querySelector('.status.wrong')?.textContent === 'the server does not answer'")


def test_of_a_long_text_the_end_is_read(open_page: Open) -> None:
    page = open_page("lens")
    page.wait_for("document.getElementById('facts').textContent.includes('sees')")
    read(page, "lens", TEXT * 3)
    assert page.text(".view .status") == "Only the last 61 of 72 characters are read."  # from the start of a word
    assert page.run("document.querySelectorAll('#lens-table thead th').length") == 62


def test_no_text_leaves_no_reading_of_another(open_page: Open) -> None:
    page = open_page("lens")
    read(page, "lens")
    page.run("document.querySelector('textarea').value = ''")
    page.press("Enter", CONTROL)
    page.wait_for("document.querySelector('.view .status').textContent === 'There is no text to read.'")
    assert page.run("document.querySelector('.reading-body').children.length") == 0


def test_a_long_word_is_not_lost_to_start_with_a_whole_one(open_page: Open) -> None:
    page = open_page("lens")
    page.wait_for("document.getElementById('facts').textContent.includes('sees')")
    read(page, "lens", "o" * 80 + " I")
    assert page.text(".view .status") == "Only the last 64 of 82 characters are read."


def test_a_view_opens_with_the_end_of_a_long_text_from_the_start_of_a_word(open_page: Open) -> None:
    page = open_page("attention")
    page.wait_for("document.getElementById('facts').textContent.includes('sees')")
    read(page, "attention", "rooms " * 12 + "best")
    page.run("location.hash = 'lens'")
    page.wait_for("document.querySelectorAll('.view-lens #lens-table').length === 1")
    assert page.run("document.querySelector('.view-lens textarea').value") == "rooms " * 10 + "best"
