"""The document at `/`: what it may do, where its views are found, and the rules of axe-core for
each, in any window.
"""

import base64
import hashlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from browser import CONTROL, Page
from http_server import Serve, Served, real_engine
from tiny import CORPUS

READ = "document.querySelector('.reading-body').children.length > 1"
VIEWS = {
    "start": ("Start", "document.querySelector('.story-text').textContent.length > 20"),
    "write": (
        "Write",
        "document.querySelector('.pane .status').textContent.includes('written with')",
    ),
    "picture": ("Model", "document.querySelector('.picture .head canvas') !== null"),
    "attention": ("Attention", READ),
    "lens": ("Logit lens", READ),
}
"""The title of a view, and what is true when it has something to show."""


def test_page_asks_nobody_else_and_runs_no_other_script(server: Served) -> None:
    answer = server.get("/")
    policy = dict(
        part.strip().split(" ", 1) for part in answer.headers["Content-Security-Policy"].split(";")
    )
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for kind in ("script", "style"):
        (content,) = re.findall(f"<{kind}>(.*?)</{kind}>", answer.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert policy[f"{kind}-src"] == f"'sha256-{digest}'"
    assert not re.search(r"(src|href|url)\s*[=(]\s*[\"']?(https?:)?//", answer.text)


def test_page_names_a_picture_of_a_text_that_its_model_wrote(serve: Serve) -> None:
    with serve(real_engine) as served:
        page = served.get("/").text
        assert 'og:title" content="first: a small GPT that writes"' in page
        (image,) = re.findall(r'og:image" content="([^"]+)"', page)
        assert image == f"{served.url}/card.png"
        cards = [served.get("/card.png") for _ in range(2)]
        assert cards[0].headers["content-type"] == "image/png"
        assert cards[0].content.startswith(b"\x89PNG")
        assert cards[0].content == cards[1].content
    with serve(real_engine, api_key="sesame") as served:
        assert "og:image" not in served.get("/").text
        assert served.get("/card.png").status_code == 401


def test_address_opens_its_view_at_the_top(open_page: Callable[..., Page]) -> None:
    """Not where an element of the same id is, which a browser scrolls to."""
    page = open_page("lens", width=400, height=300)
    for address, (title, _) in VIEWS.items():
        page.run(f"location.hash = ''; location.hash = '{address}'")
        page.wait_for(f"document.querySelector('h1').textContent === '{title}'")
        assert page.run(f"document.getElementById('{address}')") is None
        assert page.run("scrollY") == 0


@pytest.mark.slow
def test_no_view_breaks_a_rule_of_accessibility_or_is_cut_off(
    trained: Path, runs: Path, tmp_path: Path, serve: Serve, visit: Callable[..., Page]
) -> None:
    """On a desk, on a phone in the dark, and magnified twice.

    Colors do not depend on the size of the window.
    """
    for name in (trained / "runs" / "tiny", runs / "first"):
        shutil.copytree(name, tmp_path / name.name)
    with serve(real_engine, folder=tmp_path) as site:
        for width, height, dark in ((1280, 800, False), (400, 800, True), (640, 400, False)):
            page = visit(site.url, width=width, height=height, dark=dark)
            for view, (_, is_shown) in VIEWS.items():
                page.run(f"location.hash = '{view}'")
                page.wait_for(f"document.querySelector('.view-{view}') !== null")
                if page.run("document.querySelector('form textarea') !== null"):
                    page.run("document.querySelector('form textarea').select()")
                    page.type(CORPUS[:50])
                    page.press("Enter", CONTROL)
                page.wait_for(is_shown)
                assert (view, width, page.violations()) == (view, width, [])
                hidden = (
                    "document.documentElement.scrollWidth - document.documentElement.clientWidth"
                )
                assert (view, width, page.run(hidden)) == (view, width, 0)
