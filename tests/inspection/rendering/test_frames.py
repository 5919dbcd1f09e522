"""Views in the frames of a notebook: as high as their content, and apart from the page around them."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import gpt
from browser import Page as BrowserPage
from gpt.data.tokenizers import CharTokenizer
from gpt.inspection.rendering.pages import Page
from tiny import sharp_model

TEXT = "the key,\nthe door"
VIEWS = {
    "attention": gpt.show.attention,
    "lens": gpt.show.lens,
    "picture": gpt.show.picture,
}


def view(name: str) -> Page:
    tokenizer = CharTokenizer(TEXT)
    return VIEWS[name](sharp_model(vocab_size=tokenizer.vocab_size, block_size=len(TEXT)), tokenizer, TEXT)


@pytest.mark.parametrize("name", VIEWS)
def test_a_frame_is_as_high_as_its_content_whatever_the_width(
    name: str, tmp_path: Path, visit: Callable[..., BrowserPage]
) -> None:
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!DOCTYPE html><body><h1>Cells</h1>{view(name)._repr_html_()}</body>", encoding="utf-8")
    shown = visit(notebook.as_uri(), width=1000)
    frame = "document.querySelector('iframe')"
    content = f"{frame}.contentDocument.documentElement"
    fits = f"{content}.offsetHeight > 300 && {frame}.clientHeight - {content}.offsetHeight === 2"
    shown.wait_for(fits)
    assert shown.run(f"{content}.scrollWidth <= {frame}.clientWidth")
    shown.run(f"{frame}.style.width = '500px'")
    shown.wait_for(f"{frame}.clientWidth === 500 && {fits}")
    assert shown.run("getComputedStyle(document.querySelector('h1')).fontSize") == "32px"  # not that of the page
    assert shown.requests == [notebook.as_uri()]


def test_a_view_is_saved_as_the_page_of_the_command(tmp_path: Path) -> None:
    page = view("lens")
    page.save(tmp_path / "page.html")
    saved = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert saved.startswith("<!DOCTYPE html>")
    assert "<title>Logit lens</title>" in saved
    assert not re.search(r'<body class="[^"]*framed', saved)  # a page has the height of its window
    assert repr(page) == "Page(kind='lens', title='Logit lens', note='')"  # short, for a terminal
