"""The playground's views against the rules of axe-core, and in a narrow or magnified window."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from browser import CONTROL, Page
from gpt.data.tokenizers import CharTokenizer
from gpt.model import GPT
from http_server import make_loaded
from serving.http.playground.training import Site, make_place, training_site
from tiny import CORPUS

Open = Callable[..., Page]
WRITTEN = "[...document.querySelectorAll('.pane .status')].every((said) => said.textContent.includes('written with'))"
READ = "document.querySelector('.reading-body').children.length > 1"
VIEWS = {
    "write": WRITTEN,
    "compare": WRITTEN,
    "attention": READ,
    "lens": READ,
    "surprisal": READ,
    "trace": READ,
    "runs": "document.querySelectorAll('.series').length > 0",
    "training": "document.querySelectorAll('.recipe').length > 0",
}
"""What is true of a view that has something to show."""
SIZES = {"desk": (1280, 800), "phone": (400, 800), "desk at 200 %": (640, 400)}


@pytest.fixture
def site(trained: Path, tmp_path: Path, runs: Path, char_model: tuple[GPT, CharTokenizer]) -> Iterator[Site]:
    """A server with a finished run, and with a recipe."""
    place = make_place(tmp_path)
    shutil.copytree(trained / "runs", place / "runs")
    shutil.copytree(runs / "first", place / "runs" / "first")
    with training_site(place, make_loaded(*char_model), place / "runs") as site:
        yield site


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dark", [False, True])
def test_no_view_breaks_a_rule_of_accessibility_or_is_cut_off(site: Site, visit: Open, size: str, dark: bool) -> None:
    width, height = SIZES[size]
    page = visit(site.served.url, width=width, height=height, dark=dark)
    for view, is_shown in VIEWS.items():
        page.run(f"location.hash = '{view}'")
        page.wait_for(f"document.querySelector('.view-{view}') !== null")
        if page.run("document.querySelector('form.prompt textarea') !== null"):
            page.run("document.querySelector('form.prompt textarea').select()")
            page.type(CORPUS[:50])
            page.press("Enter", CONTROL)
        page.wait_for(is_shown)
        assert (view, page.violations()) == (view, [])
        assert (view, page.run("document.documentElement.scrollWidth - document.documentElement.clientWidth")) == (
            view,
            0,
        )


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_the_reference_breaks_no_rule_of_accessibility(site: Site, visit: Open, dark: bool) -> None:
    assert visit(f"{site.served.url.rstrip('/')}/docs", width=400, height=800, dark=dark).violations() == []
