"""The playground's views against the rules of axe-core, and in a narrow or magnified window."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from browser import CONTROL, Page
from http_server import Serve, Served, real_engine
from tiny import CORPUS

Open = Callable[..., Page]
READ = "document.querySelector('.reading-body').children.length > 1"
VIEWS = {
    "write": "document.querySelector('.pane .status').textContent.includes('written with')",
    "picture": "document.querySelector('.picture .head canvas') !== null",
    "attention": READ,
    "lens": READ,
    "learning": "document.querySelectorAll('.map-token').length > 0",
}
"""What is true of a view that has something to show."""


@pytest.fixture
def site(trained: Path, runs: Path, tmp_path: Path, serve: Serve) -> Iterator[Served]:
    """A server of two models, of which one has a finished run."""
    for name in (trained / "runs" / "tiny", runs / "first"):
        shutil.copytree(name, tmp_path / name.name)
    with serve(make_engine=real_engine, folder=tmp_path) as site:
        yield site


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "height", "dark"),
    [(1280, 800, False), (400, 800, True), (640, 400, False)],
    ids=["desk", "phone", "200 %"],
)
def test_no_view_breaks_a_rule_of_accessibility_or_is_cut_off(
    site: Served, visit: Open, width: int, height: int, dark: bool
) -> None:
    """Colors do not depend on the size of the window."""
    page = visit(site.url, width=width, height=height, dark=dark)
    for view, is_shown in VIEWS.items():
        page.run(f"location.hash = '{view}'")
        page.wait_for(f"document.querySelector('.view-{view}') !== null")
        if page.run("document.querySelector('form textarea') !== null"):
            page.run("document.querySelector('form textarea').select()")
            page.type(CORPUS[:50])
            page.press("Enter", CONTROL)
        page.wait_for(is_shown)
        assert (view, page.violations()) == (view, [])
        assert (view, page.run("document.documentElement.scrollWidth - document.documentElement.clientWidth")) == (
            view,
            0,
        )
