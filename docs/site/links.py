"""What Markdown for a site needs: links to where a file is in the site, and formulas that need no
script.
"""

import posixpath
import re
from pathlib import PurePosixPath

from latex2mathml.converter import convert

from docs.site.lessons import LESSONS

_LESSONS = {f"notebooks/{path.name}": f"book/{path.stem}.md" for path in LESSONS}
"""The pages of the notebooks that are kept with their outputs."""
_PARTS = re.compile(
    r"(?P<code>^ *(?P<fence>`{3,}).*?^ *(?P=fence) *$|`[^`]+`)"
    r"|\]\((?P<link>[^)\s]+)\)"
    r"|\$\$(?P<display>.+?)\$\$"
    r"|\$(?P<inline>[^$\n]+)\$",
    re.DOTALL | re.MULTILINE,
)


def place(path: str) -> str:
    """Return where a file of the checkout is among the site's pages.

    A file outside docs/ becomes a page of its own.
    """
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path in _LESSONS:
        return _LESSONS[path]
    if path.startswith("notebooks/") and path.endswith(".ipynb"):
        return "book/" + path.removeprefix("notebooks/")
    if path == "README.md":
        return "index.md"  # the site opens on what a code host shows first
    return f"source/{path}" if path.endswith(".md") else f"source/{path}.md"


def adapt(text: str, path: str) -> tuple[str, set[str]]:
    """Return the Markdown of a file of the checkout for the site, and the files outside docs/ that
    it links to.
    """
    found = set[str]()

    def replaced(match: re.Match[str]) -> str:
        if link := match["link"]:
            return f"]({_link(link, path, found)})"
        if formula := match["display"]:
            return f'<div class="formula">{convert(formula.strip(), display="block")}</div>'
        return f"<span>{convert(match['inline'])}</span>" if match["inline"] else match[0]

    return _PARTS.sub(replaced, text), found


def _link(link: str, path: str, found: set[str]) -> str:
    """Return a link of a page, from where it is in the site; note its target."""
    if re.match(r"[a-z]+:|#", link):
        return link
    target, anchor = re.match(r"([^#]*)(.*)", link).groups()  # type: ignore[union-attr]
    target = posixpath.normpath(PurePosixPath(path).parent / target)
    if not target.startswith("docs/") and not target.endswith(".ipynb"):
        found.add(target)
    return posixpath.relpath(place(target), PurePosixPath(place(path)).parent) + anchor
