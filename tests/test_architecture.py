"""Pages for whoever changes the package: the functions and files that they link to exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("docs/architecture.md", "docs/changing.md", "CONTRIBUTING.md")
LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<target>[^)#\s]*)(?:#(?P<anchor>[^)]+))?\)")
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
WALKS = ("From a command to an update", "From a prompt to a character")


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def defined_in(file: Path) -> set[str]:
    """Return the names of the functions and classes of a module."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return {node.name for node in body if isinstance(node, DEFINITIONS)}


def anchors_of(text: str) -> set[str]:
    """Return the anchors of the headings of a page, as the site and GitHub make them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def is_broken(page: str, link: re.Match[str]) -> bool:
    """Return whether the file, the heading or the function that a link of a page names is not
    there.
    """
    if link["target"].startswith("https:"):
        return False
    target = (ROOT / page).parent / link["target"] if link["target"] else ROOT / page
    if not target.exists():
        return True
    if link["anchor"]:
        return link["anchor"] not in anchors_of(target.read_text(encoding="utf-8"))
    name = link["text"].strip("`")
    if target.suffix == ".py" and link["text"] == f"`{name}`" and name.isidentifier():
        return name not in defined_in(target)
    return False


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_headings_and_functions(page: str) -> None:
    links = list(LINK.finditer(text_of(page)))
    assert links
    assert [link[0] for link in links if is_broken(page, link)] == []


@pytest.mark.parametrize("walk", WALKS)
def test_walk_is_a_numbered_list_of_linked_functions(walk: str) -> None:
    section = text_of("docs/architecture.md").partition(f"## {walk}\n")[2].partition("\n## ")[0]
    steps = re.findall(r"^\d+\. .*(?:\n   .*)*", section, re.MULTILINE)
    assert len(steps) > 3
    assert [
        step for step in steps if not re.search(r"\[`\w+`\]\(\.\./gpt/[\w/]+\.py\)", step)
    ] == []


def test_files_that_recipes_name_are_there() -> None:
    named = re.findall(
        r"`((?:gpt|tests|docs|configs|benchmarks)/[\w/.]*)`", text_of("CONTRIBUTING.md")
    )
    assert len(named) > 30
    assert [name for name in named if not (ROOT / name).exists()] == []
