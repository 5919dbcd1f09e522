"""Every kind of page in Firefox, which no other test sees: its text is there, it fits the window, and nothing fails."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from firefox import Firefox
from gpt.cli import explain, export
from programs import find_firefox
from server_process import serve_process

WRITTEN = "[...document.querySelectorAll('.status')].some((said) => said.textContent.includes('written with'))"
VIEWS = {
    "write": WRITTEN,
    **dict.fromkeys(("attention", "lens", "surprisal"), "document.querySelector('.reading-body')?.children.length > 1"),
    "runs": "document.querySelectorAll('.series').length > 0",
}
"""What is true of a view that has something to show."""
WAIT = """new Promise((done) => {{
  const look = () => ({condition} ? done(true) : setTimeout(look, 20));
  look();
}})"""
FILL = """(() => {{
  const field = document.querySelector('form textarea');
  if (!field) return;
  field.value = {text};
  field.dispatchEvent(new Event('input', {{ bubbles: true }}));
  field.form.requestSubmit();
}})()"""
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def firefox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firefox]:
    with Firefox(find_firefox(), tmp_path_factory.mktemp("firefox")) as firefox:
        yield firefox


def assert_views_work(firefox: Firefox, url: str, views: list[str], zoom: float) -> None:
    firefox.console.clear()
    firefox.open(url, 1280, 900, zoom)
    for view in views:
        firefox.run(f"location.hash = '{view}'")
        firefox.run(WAIT.format(condition=f"document.querySelector('.view-{view}')"))
        firefox.run(FILL.format(text=json.dumps("It was the")))
        firefox.run(WAIT.format(condition=VIEWS[view]))
        assert (view, firefox.run(TOO_WIDE)) == (view, 0)
    assert firefox.console == []


@pytest.mark.slow
@pytest.mark.parametrize("zoom", [1, 2])
def test_the_playground_works(firefox: Firefox, trained: Path, zoom: float) -> None:
    with serve_process(trained) as server:
        assert_views_work(firefox, f"{server.url}/", list(VIEWS), zoom)


@pytest.mark.slow
@pytest.mark.parametrize("zoom", [1, 2])
def test_an_exported_page_works(firefox: Firefox, trained: Path, tmp_path: Path, zoom: float) -> None:
    page = tmp_path / "page.html"
    assert export.main(["--to", "html", "--checkpoint", str(trained / "runs/tiny"), "--output", str(page)]) == 0
    assert_views_work(firefox, page.as_uri(), [view for view in VIEWS if view != "runs"], zoom)


@pytest.mark.parametrize("zoom", [1, 2])
@pytest.mark.parametrize("view", ["attention", "lens", "surprisal"])
def test_a_page_of_explain_shows_its_text(
    firefox: Firefox, trained: Path, tmp_path: Path, view: str, zoom: float
) -> None:
    page = tmp_path / "view.html"
    run = ["--checkpoint", str(trained / "runs/tiny")]
    assert explain.main([view, *run, "--prompt", "It was", "--html", str(page)]) == 0
    firefox.console.clear()
    firefox.open(page.as_uri(), 1280, 900, zoom)
    assert "␣" in firefox.run("document.querySelector('main').innerText")
    assert firefox.run(TOO_WIDE) == 0
    assert firefox.console == []
