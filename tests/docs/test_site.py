"""The built site: what it has, that it needs nothing from elsewhere, and how it is read from a
folder.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

import gpt
from browser import Page
from docs.site.build import build
from docs.site.chapters import CHAPTERS
from docs.site.lessons import LESSONS
from gpt.cli.commands import COMMANDS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # the first test waits for every chapter
LOADED = re.compile(
    r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?(https?:)?//[^>]*"
)
THEME = ("landmark-unique: #__code_", "scrollable-region-focusable: #__code_")
"""The theme's own: each button that copies has a landmark, and code can be scrolled by keyboard
once it is in sight.
"""


@pytest.fixture(scope="session")
def site(work: Path, executed) -> Path:  # type: ignore[no-untyped-def]
    """The site, which MkDocs refuses to build if a link or an anchor in it leads nowhere."""
    with FileLock(work / "site.lock"):
        return (
            work / "site"
            if (work / "site").exists()
            else build(work, {path: executed(path) for path in CHAPTERS})
        )


def test_site_has_every_page_and_loads_nothing_from_elsewhere(site: Path) -> None:
    assert all((site / "commands" / f"{name}.html").is_file() for name in COMMANDS)
    assert all(
        (site / "book" / f"{path.stem}.{kind}").is_file()
        for path in [*CHAPTERS, *LESSONS]
        for kind in ("html", "ipynb")
    )
    pages = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    reference = "".join(text for path, text in pages.items() if path.parent.name == "reference")
    names = {*gpt.__all__, "model.attention.Attention", "system.errors.ConfigError"} - {"GPTError"}
    assert [name for name in names if f'id="gpt.{name}"' not in reference] == []
    assert {
        path.name: match[0] for path, text in pages.items() if (match := LOADED.search(text))
    } == {}
    styles = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    assert not any(re.search(r"@import|url\([\"']?(https?:)?//", style) for style in styles)


def test_site_opens_on_the_readme_with_a_model_to_write_with(
    site: Path, visit: Callable[..., Page]
) -> None:
    first = (site / "index.html").read_text(encoding="utf-8")
    assert "make demo" in first
    assert "playground.png" not in first
    page = visit((site / "index.html").as_uri())
    source = page.run("document.querySelector('iframe.live-model').getAttribute('src')")
    assert (site / source).is_file()


def test_chapter_breaks_no_rule_of_accessibility(site: Path, visit: Callable[..., Page]) -> None:
    for dark in (False, True):
        page = visit((site / "book" / f"{CHAPTERS[0].stem}.html").as_uri(), dark=dark)
        assert [each for each in page.violations() if not each.startswith(THEME)] == []
