"""Pages for whoever changes the package: the ways through it, and the files that recipes name."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
WALKS = ("From a command to an update", "From a prompt to a character")


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


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
