import re
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

PROMPT = "It was"
every_view = pytest.mark.parametrize("view", ["attention", "lens", "surprisal"])
every_kind = pytest.mark.parametrize(("kind", "start"), [("png", b"\x89PNG\r\n\x1a\n"), ("html", b"<!")])


@every_view
@every_kind
def test_a_file_is_written_and_named(run: Any, tmp_path: Path, view: str, kind: str, start: bytes) -> None:
    path = tmp_path / f"view.{kind}"
    path.write_bytes(b"old")
    assert run(view, "--prompt", PROMPT, f"--{kind}", str(path)) == (0, f"{path}\n", "")
    assert path.read_bytes().startswith(start)
    assert list(tmp_path.iterdir()) == [path]


@every_view
def test_both_at_once_and_the_same_twice(run: Any, tmp_path: Path, view: str) -> None:
    contents = []
    for number in "12":
        paths = [tmp_path / f"{number}.{kind}" for kind in ("png", "html")]
        options = ["--png", str(paths[0]), "--html", str(paths[1])]
        assert run(view, "--prompt", PROMPT, *options).out.split() == [str(path) for path in paths]
        contents.append([path.read_bytes() for path in paths])
    assert contents[0] == contents[1]


@pytest.mark.parametrize("options", [[], ["--layer", "0"], ["--layer", "0", "--head", "1"]], ids=" ".join)
def test_attention_is_drawn_as_it_was_chosen(run: Any, tmp_path: Path, options: list[str]) -> None:
    path = tmp_path / "view.png"
    run("attention", "--prompt", PROMPT, "--png", str(path), *options)
    width = int.from_bytes(path.read_bytes()[16:20], "big")
    assert width == (120 * 5 if "--head" in options else round(120 * 4.4))


class Addresses(HTMLParser):
    """What a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        loads = {"src"} if tag != "link" else {"href"}
        self.found += [value or "" for name, value in attrs if name in loads]


@every_view
def test_a_page_needs_no_network(run: Any, tmp_path: Path, view: str) -> None:
    path = tmp_path / "view.html"
    run(view, "--prompt", PROMPT, "--html", str(path))
    page, addresses = path.read_text(encoding="utf-8"), Addresses()
    addresses.feed(page)
    assert [address for address in addresses.found if not address.startswith("data:")] == []
    assert not re.search(r"@import|fetch\(|XMLHttpRequest|url\((?!['\"]?data:)", page)
    assert "</html>" in page


@every_view
@pytest.mark.parametrize("kind", ["png", "html"])
@pytest.mark.parametrize(("place", "words"), [("gone/view", "No such file or directory"), ("", "Is a directory")])
def test_what_cannot_be_written_is_told(
    refuse: Callable[..., str], tmp_path: Path, view: str, kind: str, place: str, words: str
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    line = refuse(view, "--prompt", PROMPT, f"--{kind}", str(folder / place))
    assert line == f"error: cannot write {folder / place}: {words}\n"
    assert list(tmp_path.rglob("*")) == [folder]


@every_view
def test_a_missing_matplotlib_is_told(
    refuse: Callable[..., str], tmp_path: Path, view: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    line = refuse(view, "--prompt", PROMPT, "--png", str(tmp_path / "view.png"))
    assert 'pip install "gpt[plot]"' in line
    assert not list(tmp_path.iterdir())


@every_view
@pytest.mark.parametrize("kind", ["png", "html"])
@pytest.mark.parametrize("format", ["json", "markdown"])
def test_a_file_and_a_format_exclude_each_other(refuse: Callable[..., str], view: str, kind: str, format: str) -> None:
    line = refuse(view, "--prompt", PROMPT, f"--{kind}", "view", f"--{format}")
    assert f"--{format} prints a view that --{kind} writes to a file; give one" in line


@every_view
@every_kind
def test_a_mistake_leaves_no_file(
    refuse: Callable[..., str], tmp_path: Path, view: str, kind: str, start: bytes
) -> None:
    refuse(view, "--prompt", "Itä", f"--{kind}", str(tmp_path / "view"))
    assert not list(tmp_path.iterdir())
