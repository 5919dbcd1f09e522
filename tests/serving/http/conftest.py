"""Servers with the real engine for a whole session, one per test whose engine the test moves by
hand, and the page.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import Page
from gpt.checkpoint import Loaded
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer
from gpt.model import GPT
from http_server import (
    CharModel,
    ManualEngine,
    Serve,
    Served,
    add_run,
    make_loaded,
    real_engine,
    serve_models,
)
from tiny import CORPUS, sharp_model


@pytest.fixture(scope="session")
def char_model() -> CharModel:
    """A model with sharp probabilities whose vocabulary is that of the corpus."""
    tokenizer = CharTokenizer(CORPUS)
    return sharp_model(vocab_size=tokenizer.vocab_size, block_size=64), tokenizer


@pytest.fixture(scope="session")
def byte_model() -> tuple[GPT, ByteTokenizer]:
    """A model whose tokens are bytes, so that most of its text is not UTF-8."""
    return sharp_model(vocab_size=256, block_size=64), ByteTokenizer()


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runs folder with two runs, whose checkpoints are empty; `first` is the newer one."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("first", "second"):
        add_run(folder, name)
    os.utime(folder / "second" / "last.json", (10**9, 10**9))
    return folder


@pytest.fixture
def serve(runs: Path, char_model: CharModel) -> Serve:
    """Start a server with an engine that the test moves by hand, or with another one."""

    def start(
        make_engine: Callable[[Loaded], Any] = lambda loaded: ManualEngine(), **options: Any
    ) -> Any:
        loaded = options.pop("loaded", make_loaded(*char_model))
        return serve_models(options.pop("folder", runs), loaded, make_engine, **options)

    return start


@pytest.fixture
def manual(serve: Serve) -> Iterator[Served]:
    """A server whose engine is moved by hand."""
    with serve() as served:
        yield served


@pytest.fixture(scope="session")
def server(runs: Path, char_model: CharModel) -> Iterator[Served]:
    """A server with the real engine, whose default is `first`, with `char_model`; `second` has
    another model.
    """
    model, tokenizer = char_model
    other = sharp_model(std=0.15, vocab_size=tokenizer.vocab_size, block_size=64)

    def load(folder: Path) -> Loaded:
        return make_loaded(model if "first" in folder.parts else other, tokenizer)(folder)

    with serve_models(runs, load, real_engine) as served:
        yield served


@pytest.fixture(scope="session")
def byte_server(runs: Path, byte_model: tuple[GPT, ByteTokenizer]) -> Iterator[Served]:
    """A server of `byte_model` with the real engine."""
    with serve_models(runs, make_loaded(*byte_model), real_engine) as served:
        yield served


@pytest.fixture
def open_page(server: Served, visit: Callable[..., Page]) -> Iterator[Callable[..., Page]]:
    """Open the playground at a hash; nothing but its server must be asked for anything."""
    pages: list[tuple[Page, str]] = []

    def start(view: str = "write", served: Served = server, **options: Any) -> Page:
        page = visit(f"{served.url}/#{view}", **options)
        pages.append((page, f"{served.url}/"))
        page.wait_for("document.querySelector('.view-body, #key-form:not([hidden])') !== null")
        return page

    yield start
    for page, own in pages:
        asked = {url for url in page.requests if not url.startswith("data:")}
        assert own in {url.partition("#")[0] for url in asked}
        assert all(url.startswith(own) for url in asked)
