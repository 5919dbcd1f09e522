"""Every link of a page leads to a file, a heading or a function that is there."""

import ast
import re

import pytest

from pages.markdown import ROOT, all_pages, anchors, text_of, without_blocks

LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<target>[^)#\s]*)(?:#(?P<anchor>[^)]+))?\)")
ELSEWHERE = ("https:", "http:", "mailto:")
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def links_of(page: str) -> list[re.Match[str]]:
    """Return the links of a page into the repository, those in examples of code left out."""
    found = LINK.finditer(without_blocks(text_of(page)))
    return [link for link in found if not link["target"].startswith(ELSEWHERE)]


def defined_in(source: str) -> set[str]:
    """Return the names of the functions and classes of a module."""
    return {node.name for node in ast.parse(source).body if isinstance(node, DEFINITIONS)}


def is_broken(page: str, link: re.Match[str]) -> bool:
    """Return whether the file, the heading or the function that a link names is not there."""
    here = ROOT / page
    target = here.parent / link["target"] if link["target"] else here
    if not target.exists():
        return True
    if link["anchor"]:
        return link["anchor"] not in anchors(target.read_text(encoding="utf-8"))
    name = link["text"].strip("`")
    names_definition = link["text"] == f"`{name}`" and name.isidentifier()
    if target.suffix == ".py" and names_definition:
        return name not in defined_in(target.read_text(encoding="utf-8"))
    return False


@pytest.mark.parametrize("page", all_pages())
def test_links_lead_to_files_headings_and_functions(page: str) -> None:
    assert [link[0] for link in links_of(page) if is_broken(page, link)] == []


def test_broken_links_are_found() -> None:
    for link, broken in (
        ("[x](docs/training.md#data)", False),
        ("[x](docs/training.md#date)", True),
        ("[x](docs/train.md)", True),
        ("[`GPT`](gpt/model/gpt.py)", False),
        ("[`GTP`](gpt/model/gpt.py)", True),
        ("[x](#results)", False),
        ("[x](#result)", True),
    ):
        match = LINK.search(link)
        assert match is not None
        assert is_broken("README.md", match) is broken


def test_pages_have_links() -> None:
    assert sum(len(links_of(page)) for page in all_pages()) > 200
