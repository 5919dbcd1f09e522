"""The pages of the repository, and their parts: prose, blocks, anchors."""

import re
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FENCED = re.compile(r"^(`{3,})(\w*)[^\n]*\n(.*?)^\1$", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"`[^`]*`")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str


def text_of(page: str) -> str:
    """Return the Markdown of a page, by its path from the root of the repository."""
    return (ROOT / page).read_text(encoding="utf-8")


@cache
def all_pages() -> tuple[str, ...]:
    """Return the paths of all Markdown files that git tracks."""
    listed = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return tuple(listed.stdout.split())


def guides() -> list[str]:
    """Return the README and the pages of docs/, without the book."""
    return ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]


def without_blocks(text: str) -> str:
    """Return a page without its fenced blocks."""
    return _FENCED.sub("", text)


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a page."""
    return [Block(match[2], match[3]) for match in _FENCED.finditer(text)]


def spans(text: str) -> list[str]:
    """Return the code in the lines of a page, each without a line end."""
    found = _SPAN.findall(without_blocks(text))
    return [span.strip("`").replace("\n", " ") for span in found]


def prose(text: str) -> str:
    """Return a page without its code, and without the targets of its links."""
    without_code = _SPAN.sub("CODE", without_blocks(text))
    return re.sub(r"\]\([^)]*\)", "]", without_code)


def anchors(text: str) -> set[str]:
    """Return the anchors of a page: those of headings, as GitHub and the site make them, and ids.

    Both keep letters, digits, hyphens and underscores of a heading in lower case, and make a hyphen
    of each space. A heading that repeats an earlier one gets a number that the two write in
    different ways, and is not among them.
    """
    headings = re.findall(r"^#+ (.+)$", without_blocks(text), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", heading).strip() for heading in headings)
    return {*(heading.lower().replace(" ", "-") for heading in kept), *_ids(text)}


def _ids(text: str) -> list[str]:
    return re.findall(r'<a id="([^"]+)">', text)
