"""Each promise of docs/reliability.md names tests and drills that hold it, and they exist."""

import ast
import re
from functools import cache

from pages.markdown import ROOT, text_of

PAGE = "docs/reliability.md"
TEST = re.compile(r"`(?P<file>tests/[\w/]+\.py)::(?P<name>test_\w+)`")


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the rows of the tables below a heading; "" is the page's title."""
    text = text_of(PAGE)
    section = text.partition(f"\n## {heading}\n")[2] if heading else text
    lines = section.partition("\n## ")[0].splitlines()
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("|")
    ]
    # without the heads of the tables, and the lines below them
    after_head = [index + 1 for index, row in enumerate(cells) if set(row[0]) == {"-"}]
    heads = {index - 2 for index in after_head} | {index - 1 for index in after_head}
    return [row for index, row in enumerate(cells) if index not in heads]


@cache
def names_in(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def test_every_promise_names_what_tests_it() -> None:
    promises = [row[0] for row in rows("")]
    held = {row[0]: row[1] for row in rows("What tests them")}
    assert len(promises) == 11
    assert [promise for promise in promises if promise not in held] == []
    assert [promise for promise, by in held.items() if not TEST.search(by)] == []


def test_tests_and_drills_that_are_named_exist() -> None:
    named = list(TEST.finditer(text_of(PAGE)))
    assert len(named) > 50
    missing = [
        match[0]
        for match in named
        if not (ROOT / match["file"]).is_file() or match["name"] not in names_in(match["file"])
    ]
    assert missing == []
    drills = {row[0] for row in rows("Drills")}
    assert all((ROOT / "tests" / "drills" / f"{drill}.py").is_file() for drill in drills)
    before_tests = [row[1].partition(";")[0] for row in rows("What tests them")]
    cited = ", ".join(words for words in before_tests if "`" not in words).split(", ")
    assert set(cited) == drills
