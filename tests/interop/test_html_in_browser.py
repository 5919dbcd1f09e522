"""An exported page in a browser: opened from disk, used by mouse and by keyboard."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from browser import CONTROL, Page
from gpt.config import SamplingParams
from gpt.data.bpe import learn_bpe
from gpt.data.tokenizers import CharTokenizer
from gpt.generation import generate
from gpt.inspection.views.attention import without_heads
from gpt.inspection.views.continuation import continuation_view
from gpt.inspection.views.lens import lens_view
from gpt.inspection.views.surprisal import surprisal_view
from gpt.interop.html import render_model_page
from gpt.model import GPT
from tiny import CORPUS, sharp_model

CHARS = CharTokenizer("abcdefghijklmnopqrst \n'")
WRITTEN = (
    "[...document.querySelectorAll('.written .token')].map((item) => item.textContent).join('').replaceAll('⏎', '\\n')"
)
DONE = "document.querySelector('.status').textContent.includes('written with seed')"
ITEM = "document.querySelectorAll('.written .token')[{}]"
Open = Callable[..., Page]


@pytest.fixture
def model(request: pytest.FixtureRequest) -> GPT:
    return sharp_model(std=0.1, position="rope", **getattr(request, "param", {}))


@pytest.fixture
def open_page(model: GPT, tmp_path: Path, visit: Open) -> Iterator[Open]:
    """Open the page of the model; nothing but the file must be asked for."""
    file = tmp_path / "model.html"
    params = SamplingParams(max_new_tokens=60, temperature=0.8, top_k=5, seed=7)
    file.write_text(render_model_page(model, CHARS, "float32", params, "ab", "A title", "a note"), encoding="utf-8")
    pages: list[Page] = []

    def start(**options: Any) -> Page:
        pages.append(visit(file.as_uri(), **options))
        return pages[-1]

    yield start
    for page in pages:
        assert {url for url in page.requests if not url.startswith("data:")} == {file.as_uri()}


def write(page: Page, prompt: str, **settings: float) -> str:
    """Type a prompt and settings, write by keyboard alone, and return the text."""
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


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"temperature": 0.8, "top_k": 5, "seed": 11}])
def test_it_writes_what_pytorch_writes(settings: dict[str, float], open_page: Open, model: GPT) -> None:
    text = write(open_page(), "the ", count=200, **settings)
    assert text == "the " + generate(model, CHARS, "the ", max_new_tokens=200, **settings)


def words_of(text: str) -> str:
    """Only what any font has: a model that learned nothing writes bytes that are no characters."""
    return "".join(char for char in text if " " <= char <= "~")


def test_tokens_of_several_characters_are_written_and_looked_into(tmp_path: Path, visit: Open) -> None:
    tokenizer = learn_bpe([CORPUS], 300)
    model = sharp_model(std=0.1, block_size=64, vocab_size=300)
    page = render_model_page(model, tokenizer, "float32", SamplingParams(), "", "A title", "a note")
    (tmp_path / "bpe.html").write_text(page, encoding="utf-8")
    shown = visit((tmp_path / "bpe.html").as_uri())
    text = write(shown, "the keeper's", count=40, temperature=0)
    expected = "the keeper's" + generate(model, tokenizer, "the keeper's", max_new_tokens=40, temperature=0.0)
    assert words_of(text.replace("␣", " ")) == words_of(expected) != words_of("the keeper's")
    for name in ("attention", "lens", "surprisal"):
        open_view(shown, name)
    assert shown.console == []


def test_webassembly_computes_and_the_pace_is_said(open_page: Open) -> None:
    page = open_page()
    assert page.run("document.getElementById('prompt').value") == "ab"
    write(page, "a")
    assert page.text(".status").startswith("60 characters written with seed 7")
    assert page.text(".status").endswith("per second by WebAssembly.")


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


def test_a_character_shows_its_alternatives_and_branches(open_page: Open, model: GPT) -> None:
    page = open_page()
    text = write(page, "the ")
    page.point(ITEM.format(9))
    assert page.text(".choice-title") == f"'{text[9].replace(' ', '␣').replace(chr(10), '⏎')}' (9)"
    assert page.run("document.querySelectorAll('.pairs li').length") == 10
    assert page.run("document.querySelectorAll('.pairs li:not(.dropped)').length") == 5
    assert page.text(".sampling") == "temperature 0.8, top-k 5"
    other = page.run("document.querySelector('.pairs li:not(.came) button').textContent")
    page.point(ITEM.format(9), click=True)
    page.point("document.querySelector('.pairs li:not(.came) button')", click=True)
    page.wait_for(DONE)
    branched = page.run(WRITTEN)
    assert len(branched) == len(text)
    assert branched[:10] == text[:9] + other.replace("␣", " ").replace("⏎", "\n")
    assert branched != text


def test_the_text_is_read_by_keyboard(open_page: Open) -> None:
    page = open_page()
    write(page, "the ", count=12)
    page.run("document.querySelector('.written [tabindex=\"0\"]').focus()")
    page.press("ArrowRight")
    page.press("ArrowRight")
    page.press("ArrowLeft")
    assert page.text(".choice-title").endswith("(5)")
    page.press("Tab")
    assert page.run("document.activeElement.closest('.pairs') !== null")
    page.press("Enter")
    page.wait_for(DONE)
    assert page.run("document.activeElement.dataset.index") == "5"


def test_attention_is_shown_over_the_text(open_page: Open) -> None:
    page = open_page()
    text = write(page, "the ", count=4)
    open_view(page, "attention")
    page.wait_for("document.querySelectorAll('#heads .thumbnail').length > 0")
    assert page.run("document.querySelector('textarea').value") == text
    assert page.run("document.querySelectorAll('#heads .thumbnail').length") == 8
    assert page.text("#matrix-title") == "Layer 0, head 0"
    page.point("document.querySelectorAll('#heads .thumbnail')[6]", click=True)
    assert page.text("#matrix-title") == "Layer 1, head 2"
    assert page.run("document.querySelectorAll('#text .token').length") == 8


TOKENS = "[...document.querySelectorAll('#text .token')].map((item) => item.textContent).join('')"


def read(page: Page, text: str) -> None:
    """Type a text to read, by keyboard alone."""
    page.run("document.getElementById('reading-text').select()")
    page.type(text)
    page.press("Enter", CONTROL)


def test_another_text_is_read_and_only_the_end_of_a_long_one(open_page: Open) -> None:
    page = open_page()
    open_view(page, "attention")
    page.wait_for(f"{TOKENS} === 'ab'")
    read(page, "tea")
    page.wait_for(f"{TOKENS} === 'tea'")
    assert page.text(".status") == ""
    read(page, "a" * 10 + "b" * 15)
    page.wait_for(f"{TOKENS} === '{'a' + 'b' * 15}'")
    assert page.text(".status") == "Only the last 16 of 25 characters are read."
    read(page, "Tea")
    page.wait_for("document.querySelector('.status.wrong') !== null")
    assert page.text(".status") == "The model does not know 'T'; remove it from the text."


def test_a_view_follows_what_is_written_and_keeps_what_was_typed(open_page: Open) -> None:
    page = open_page()
    open_view(page, "attention")
    read(page, "tea")
    page.wait_for(f"{TOKENS} === 'tea'")
    open_view(page, "write")
    open_view(page, "attention")
    assert page.run("document.getElementById('reading-text').value") == "tea"
    open_view(page, "write")
    text = write(page, "the ", count=5)
    open_view(page, "attention")
    page.wait_for(f"{TOKENS} === {json.dumps(text.replace(chr(10), '⏎').replace(' ', '␣'))}")
    assert page.run("document.title") == "Attention · A title"


def test_the_lens_and_surprisal_are_shown_of_what_was_written(open_page: Open, model: GPT) -> None:
    page = open_page()
    text = write(page, "the ", count=8, temperature=0)
    ids = torch.tensor(CHARS.encode(text).tolist())
    lens = lens_view(model, CHARS, ids)
    open_view(page, "lens")
    page.wait_for("document.querySelectorAll('#lens-table .cell').length === 36")
    found = page.run("[...document.querySelectorAll('#lens-table .cell')].map((cell) => cell.textContent)")
    assert found == [cell[0][0] for row in lens["top"] for cell in row]
    open_view(page, "surprisal")
    page.wait_for("document.querySelectorAll('#text .token').length === 12")
    mean = surprisal_view(model, CHARS, ids, SamplingParams())["mean_bits"]
    assert float(page.text("#mean")) == pytest.approx(mean, abs=1e-3)
    assert page.text("#after-title") == "With temperature 0.8, top-k 5"


@pytest.mark.parametrize("model", [{"block_size": 80}], indirect=True)
def test_a_head_is_ablated_by_keyboard_and_the_text_goes_on_without_it(open_page: Open, model: GPT) -> None:
    page = open_page()
    open_view(page, "attention")
    read(page, "the rest is in it")
    page.wait_for("document.querySelectorAll('#text .token').length === 17")
    page.run("document.querySelector('.thumbnail').focus()")
    page.press("ArrowRight")
    page.press("x")
    page.wait_for("document.querySelector('.effects')?.hidden === false")
    idx = torch.tensor(CHARS.encode("the rest is in it").tolist())
    left = without_heads([(0, 1)])
    bits, all_bits = (
        surprisal_view(model, CHARS, idx, SamplingParams(), edits=edits)["mean_bits"] for edits in (left, None)
    )
    assert f"{bits:.3f} bits per token without it, {all_bits:.3f} with all heads" in page.text(".ablation .effect")
    written = "[...document.querySelectorAll('.ablation .{} .continued')].map((item) => item.textContent).join('')"
    for name, edits in (("with-all", None), ("without", left)):
        expected = continuation_view(model, CHARS, idx, 48, edits)["labels"]
        assert page.run(written.format(name)) == "".join(expected)


def test_views_are_opened_and_texts_read_by_keyboard_alone(open_page: Open) -> None:
    page = open_page()
    for _ in range(4):
        page.press("Tab")  # the links to the views come first
    assert page.run("document.activeElement.textContent") == "Surprisal"
    page.press("Enter")
    page.wait_for("document.querySelector('.view-surprisal #text .token') !== null")
    page.press("Tab")
    assert page.run("document.activeElement.id") == "reading-text"
    page.type("the rest ")
    page.press("Enter", CONTROL)
    page.wait_for("document.querySelectorAll('#text .token').length === 11")
    page.press("Tab")
    page.press("Tab")
    page.press("ArrowRight")
    assert page.text("#details-title").endswith("(2)")


@pytest.mark.parametrize("view", ["attention", "lens", "surprisal"])
@pytest.mark.parametrize(("width", "dark"), [(1280, True), (400, False)])
def test_no_view_is_wider_than_the_window(view: str, width: int, dark: bool, open_page: Open) -> None:
    page = open_page(width=width, dark=dark)
    write(page, "the ", count=30)
    open_view(page, view)
    page.wait_for("document.querySelector('.view .text, .view #lens-table .cell') !== null")
    assert page.run("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("model", [{"block_size": 128}], indirect=True)
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("dark", [False, True])
def test_no_view_breaks_a_rule_of_accessibility(width: int, dark: bool, open_page: Open) -> None:
    page = open_page(width=width, height=800, dark=dark)
    write(page, "the ", count=100)
    assert page.violations() == []
    for view in ("attention", "lens", "surprisal"):
        open_view(page, view)
        page.wait_for("document.querySelector('.view .text, .view #lens-table .cell') !== null")
        assert page.violations() == []


@pytest.mark.parametrize("prompt", ["the #1", "Z"])
def test_a_character_that_the_model_does_not_know_is_named(prompt: str, open_page: Open) -> None:
    page = open_page()
    page.run("document.getElementById('prompt').select()")
    page.type(prompt)
    page.press("Enter", CONTROL)
    assert page.text(".status").startswith(
        "The model does not know '#', '1'" if "#" in prompt else "The model does not"
    )
    assert page.run(WRITTEN) == ""


def test_an_empty_prompt_starts_after_a_line_end(open_page: Open, model: GPT) -> None:
    text = write(open_page(), "\n", count=20, temperature=0)
    page = open_page()
    page.run("document.getElementById('prompt').value = ''")
    page.run("document.getElementById('temperature').value = 0; document.getElementById('count').value = 20")
    page.press("Enter", CONTROL)
    page.wait_for(DONE)
    assert page.run(WRITTEN) == text == "\n" + generate(model, CHARS, "", max_new_tokens=20, temperature=0.0)


def test_a_page_that_computes_something_else_says_so_and_writes_nothing(
    model: GPT, tmp_path: Path, visit: Open
) -> None:
    page = render_model_page(model, CHARS, "float32", SamplingParams(), "ab", "A title", "a note")
    file = tmp_path / "model.html"
    file.write_text(page.replace('"position":"rope"', '"position":"none"'), encoding="utf-8")
    opened = visit(file.as_uri())
    opened.wait_for("document.querySelector('.status.wrong') !== null")
    assert opened.text(".status.wrong").startswith("This page does not compute what its model computes")
    assert not opened.run("document.querySelector('#views a, textarea, button') !== null")


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (400, True)])
def test_nothing_is_wider_than_the_window(width: int, dark: bool, open_page: Open) -> None:
    page = open_page(width=width, dark=dark)
    write(page, "the ", count=100)
    assert page.run("document.documentElement.scrollWidth") <= width
    lightness = page.run("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)")
    assert (sum(lightness) < 100) == dark
