"""An exported page in a browser: opened from disk, used by mouse and by keyboard."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import CONTROL, Page
from gpt.config import SamplingParams
from gpt.data.bpe import learn_bpe
from gpt.data.tokenizers import CharTokenizer
from gpt.generation import generate
from gpt.interop.html import render_model_page
from gpt.model import GPT
from tiny import CORPUS, sharp_model

CHARS = CharTokenizer("abcdefghijklmnopqrst \n'")
WRITTEN = (
    "[...document.querySelectorAll('.written .token')].map((item) => item.textContent).join('').replaceAll('⏎', '\\n')"
)
DONE = "document.querySelector('.status').textContent.includes('written with seed')"
Open = Callable[..., Page]


@pytest.fixture
def model(request: pytest.FixtureRequest) -> GPT:
    return sharp_model(std=0.1, position="rope", **getattr(request, "param", {}))


@pytest.fixture
def open_page(model: GPT, tmp_path: Path, visit: Open) -> Iterator[Open]:
    """Open the page of the model; nothing but the file must be asked for."""
    file = tmp_path / "model.html"
    params = SamplingParams(max_new_tokens=60, temperature=0.8, top_k=5, seed=7)
    file.write_text(render_model_page(model, CHARS, "float32", params, "A title", "a note", "ab"), encoding="utf-8")
    pages: list[Page] = []

    def start(**options: Any) -> Page:
        pages.append(visit(file.as_uri(), **options))
        return pages[-1]

    yield start
    for page in pages:
        assert {url for url in page.requests if not url.startswith("data:")} == {file.as_uri()}


def write(page: Page, prompt: str, **settings: float) -> str:
    """Type a prompt and settings, write by keyboard alone, and return the text."""
    page.run("document.querySelector('.sampling-settings').open = true")
    page.run("document.getElementById('prompt').select()")
    page.type(prompt)
    for name, value in settings.items():
        page.run(f"document.getElementById('{name.replace('_', '-')}').select()")
        page.type(str(value))
    page.press("Enter", CONTROL)
    page.wait_for(DONE)
    return page.run(WRITTEN)


def open_view(page: Page, name: str) -> None:
    """Open a view by a click on its name."""
    page.point(f"document.querySelector('#views [href=\"#{name}\"]')", click=True)
    page.wait_for(f"document.querySelector('.view-{name}') !== null")


def test_it_writes_what_pytorch_writes_by_webassembly(open_page: Open, model: GPT) -> None:
    page = open_page()
    assert page.run("document.getElementById('prompt').value") == "ab"
    text = write(page, "the ", count=200, temperature=0.8, top_k=5, seed=11)
    assert text == "the " + generate(model, CHARS, "the ", max_new_tokens=200, temperature=0.8, top_k=5, seed=11)
    assert page.text(".status").startswith("200 characters written with seed 11")
    assert "per second." in page.text(".status")


def test_tokens_of_several_characters_are_written_and_looked_into(tmp_path: Path, visit: Open) -> None:
    tokenizer = learn_bpe([CORPUS], 300)
    page = render_model_page(sharp_model(vocab_size=300), tokenizer, "float32", SamplingParams(), "A title", "")
    (tmp_path / "bpe.html").write_text(page, encoding="utf-8")
    shown = visit((tmp_path / "bpe.html").as_uri())
    text = write(shown, "the keeper's", count=10)
    assert text.startswith("the keeper's")
    assert len(text) > len("the keeper's")
    for name in ("picture", "attention", "lens"):
        open_view(shown, name)
    assert shown.console == []


def test_it_stops_at_once_and_starts_again(open_page: Open) -> None:
    page = open_page()
    page.run("document.getElementById('count').value = 20000")
    page.point("document.getElementById('write-button')", click=True)
    page.wait_for("document.querySelectorAll('.written .token').length > 20")
    page.press("Escape")
    length = len(page.run(WRITTEN))
    assert page.run(DONE)
    assert page.run("document.getElementById('stop').disabled")
    page.run("new Promise((done) => setTimeout(done, 100))")
    assert len(page.run(WRITTEN)) == length < 20000
    assert write(page, "the ", count=5).startswith("the ")


TOKENS = "[...document.querySelectorAll('#text .token')].map((item) => item.textContent).join('')"


def read(page: Page, text: str) -> None:
    """Type a text to read, by keyboard alone."""
    page.run("document.getElementById('reading-text').select()")
    page.type(text)
    page.press("Enter", CONTROL)


def test_a_view_follows_what_is_written_and_keeps_what_was_typed(open_page: Open) -> None:
    page = open_page()
    for _ in range(4):
        page.press("Tab")  # the links to the views come first
    page.press("Enter")
    page.wait_for(f"document.querySelector('.view-lens') !== null && {TOKENS} === 'ab'")
    for _ in range(2):  # by More
        page.press("Tab")
    assert page.run("document.activeElement.id") == "reading-text"
    read(page, "a" * 10 + "b" * 15)
    page.wait_for(f"{TOKENS} === '{'a' + 'b' * 15}'")
    assert page.text(".status") == "Only the last 16 of 25 characters are read."
    read(page, "Tea")
    page.wait_for("document.querySelector('.status.wrong') !== null")
    assert page.text(".status") == "The model does not know 'T'; remove it from the text."
    read(page, "tea")
    page.wait_for(f"{TOKENS} === 'tea'")
    assert page.text(".status") == ""
    for key in ("Tab", "Tab", "ArrowRight"):  # by the button to the tokens
        page.press(key)
    assert page.text("#details-title").endswith(" at 2")
    open_view(page, "write")
    open_view(page, "lens")
    assert page.run("document.getElementById('reading-text').value") == "tea"
    open_view(page, "write")
    text = write(page, "the ", count=5)
    open_view(page, "attention")
    page.wait_for(f"{TOKENS} === {json.dumps(text.replace(chr(10), '⏎').replace(' ', '␣'))}")
    assert page.run("document.title") == "Attention · A title"


@pytest.mark.parametrize("model", [{"block_size": 128}], indirect=True)
@pytest.mark.parametrize(("width", "dark"), [(1280, True), (400, False)])
def test_no_view_breaks_a_rule_of_accessibility_or_is_cut_off(width: int, dark: bool, open_page: Open) -> None:
    page = open_page(width=width, height=800, dark=dark)
    write(page, "the ", count=100)
    lightness = page.run("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)")
    assert (sum(lightness) < 100) == dark
    for view in ("write", "picture", "attention", "lens"):
        open_view(page, view)
        page.wait_for("document.querySelector('.view .text, .view .head canvas, .view #lens-table .cell') !== null")
        assert (view, page.violations()) == (view, [])
        assert page.run("document.documentElement.scrollWidth") <= width


def test_a_character_that_the_model_does_not_know_is_named_and_an_empty_prompt_starts_a_line(
    open_page: Open, model: GPT
) -> None:
    page = open_page()
    page.run("document.getElementById('prompt').select()")
    page.type("the #1")
    page.press("Enter", CONTROL)
    page.wait_for("""document.querySelector('.status').textContent.startsWith("The model does not know '#', '1'")""")
    assert page.run(WRITTEN) == ""
    page.run("document.getElementById('prompt').value = ''")
    assert write(page, "", count=20, temperature=0) == "\n" + generate(
        model, CHARS, "", max_new_tokens=20, temperature=0.0
    )
