"""A server with two models that write differently, and its page in a browser."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import Page
from gpt.checkpoint import Loaded
from http_server import CharModel, Served, make_loaded, real_engine, serve_models
from tiny import sharp_model

Open = Callable[..., Page]


@pytest.fixture(scope="session")
def two_models(runs: Path, char_model: CharModel) -> Iterator[Served]:
    """A server whose run `first` has another model than `second`."""
    model, tokenizer = char_model
    other = sharp_model(std=0.15, vocab_size=tokenizer.vocab_size, block_size=64)

    def load(folder: Path) -> Loaded:
        return make_loaded(model if "second" in folder.parts else other, tokenizer)(folder)

    with serve_models(runs, load, real_engine) as served:
        yield served


@pytest.fixture
def open_page(two_models: Served, visit: Open) -> Iterator[Open]:
    """Open the playground at a hash; nothing but its server must be asked for anything."""
    pages: list[tuple[Page, str]] = []

    def start(view: str = "", served: Served = two_models, **options: Any) -> Page:
        page = visit(f"{served.url}/{view and '#'}{view}", **options)
        pages.append((page, f"{served.url}/"))
        page.wait_for("document.querySelector('.view-body, #key-form:not([hidden])') !== null")
        return page

    yield start
    for page, own in pages:
        asked = {url for url in page.requests if not url.startswith("data:")}
        assert own in {url.partition("#")[0] for url in asked}
        assert all(url.startswith(own) for url in asked)
