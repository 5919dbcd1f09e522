"""The outputs of the chapters, kept in their Markdown, so that a code host shows them.

Below each block of code that prints or draws stands what came of it, between two comments:

    <!-- output -->
    (a block of text, of printed code, or a picture)
    <!-- /output -->

`<!-- output, timed -->` marks what depends on the speed of the machine, or on the clock. The author
of a chapter says so by the tag `timed` of the block of code. In such an output only the words are
compared with those of a new execution, and in all others every character.
"""

import base64
import html
import platform
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from nbformat import NotebookNode
from nbformat.v4 import new_output

from docs.site.photograph import photograph
from gpt.system.processor import supported_processors

PICTURES = "pictures"
"""The folder of the pictures, beside the chapters."""
MACHINE = "executed_on.txt"
"""The file beside the chapters that names the kind of machine that their outputs come from."""
DRAWN = "What the code above draws"
"""The text in place of a picture that has no name."""
TIMED = "timed"
"""The tag of a block whose output depends on time."""
_OUTPUT = r"\n\n<!-- output(?P<timed>, timed)? -->\n(?P<shown>.*?)\n<!-- /output -->"
# A block of code; the HTML that folds it belongs to it, so that its output is not folded.
_BLOCK = (
    r"(?:^<details>\n<summary>[^\n]*</summary>\n\n)?"
    r"^```(?:python|sh)\b[^\n]*\n.*?^```$"
    r"(?:\n\n</details>)?"
)
_WITH_OUTPUT = re.compile(f"(?P<block>{_BLOCK})(?:{_OUTPUT})?", re.DOTALL | re.MULTILINE)
_PART = re.compile(
    r"^(?P<fence>`{3,})\w+\n(?P<text>.*?)\n(?P=fence)$|!\[(?P<name>[^]]*)\]\((?P<picture>[^)]+)\)",
    re.DOTALL | re.MULTILINE,
)
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
SLOW_LINES = re.compile(
    r"^(loading torch|step \d+: evaluating|writing [\d,]+ samples|answering questions)\n",
    re.MULTILINE,
)
"""Lines of a report that appear where the computer is slow, or busy."""
_NUMBER = re.compile(r"\d[\d,.:]*")
_SVG = re.compile(r"<svg viewBox=\"0 0 (?P<width>\d+) (?P<height>\d+)\".*?</svg>", re.DOTALL)
_SVG_STYLE = re.compile(r" style=\"[^\"]*\"", re.DOTALL)
_NAME = re.compile(r" (?:aria-label|title)=\"(?P<name>[^\"]+)\"")
_FRAMED_PAGE = re.compile(r"<iframe srcdoc=\"(?P<page>[^\"]*)\"")
_FRAMED_FILE = re.compile(r"<iframe[^>]*\ssrc=\"(?P<file>[^\"]*)\"")
_GRAY = "#888888"
"""A color that can be read on a light page and on a dark one."""


@dataclass(frozen=True)
class Picture:
    """A picture of an output, under the name of its file."""

    name: str
    data: NotebookNode  # the forms of the output, by their types


def machine() -> str:
    """Return the kind of this machine: where it is the same, so are all numbers."""
    processor = supported_processors()[0].name
    return f"Python {platform.python_version()}, PyTorch {torch.__version__}, {processor}"


def without_outputs(text: str) -> str:
    """Return the Markdown of a chapter without its outputs."""
    return _WITH_OUTPUT.sub(r"\g<block>", text)


def with_outputs(text: str, cells: Sequence[NotebookNode], name: str) -> tuple[str, list[Picture]]:
    """Return the Markdown of a chapter with the outputs of its executed cells of code, and the
    pictures among them.

    Args:
        name: that of the chapter, with which the names of its pictures begin.
    """
    pictures: list[Picture] = []
    parts = []
    end = 0
    for match, cell in zip(_WITH_OUTPUT.finditer(text), cells, strict=True):
        parts += [text[end : match.start()], match["block"]]
        end = match.end()
        shown = []
        for output in cell.get("outputs", []):
            if _is_picture(output):
                ending = "svg" if _is_curve(output) else "png"
                picture = Picture(f"{name}-{len(pictures) + 1}.{ending}", output.data)
                pictures.append(picture)
                shown.append(f"![{_description(output)}]({PICTURES}/{picture.name})")
            elif text_of(output):
                shown.append(_block_of_text(text_of(output), prints_source(cell)))
        if shown:
            parts.append(_between_comments(shown, TIMED in cell.metadata.get("tags", [])))
    parts.append(text[end:])
    return "".join(parts), pictures


def comparable(text: str) -> str:
    """Return the Markdown of a chapter without the numbers of its timed outputs, and their
    alignment.
    """
    return _WITH_OUTPUT.sub(_without_numbers, text)


def kept_outputs(path: Path) -> Iterator[list[NotebookNode]]:
    """Yield the outputs that a chapter keeps, for each of its blocks of code."""
    for match in _WITH_OUTPUT.finditer(path.read_text(encoding="utf-8")):
        found = []
        for part in _PART.finditer(match["shown"] or ""):
            if part["picture"] is None:
                found.append(new_output("stream", name="stdout", text=part["text"] + "\n"))
            else:
                found.append(_kept_picture(path.parent / part["picture"], part["name"]))
        yield found


def _without_numbers(match: re.Match[str]) -> str:
    """Return a block of code and its output; if that is timed, without its numbers."""
    if match["timed"] is None:
        return match[0]
    return re.sub(" +", " ", _NUMBER.sub("NUMBER", match[0]))


def write(path: Path, cells: Sequence[NotebookNode], place: Path) -> None:
    """Write the outputs of a chapter's executed cells of code into its Markdown, and its pictures
    beside it.

    Args:
        place: the folder in which the chapter was executed.
    """
    text, pictures = with_outputs(path.read_text(encoding="utf-8"), cells, path.stem)
    folder = path.parent / PICTURES
    folder.mkdir(exist_ok=True)
    contents = {picture.name: _content(picture, place) for picture in pictures}
    for old in folder.glob(f"{path.stem}-*"):
        old.unlink()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    path.write_text(text, encoding="utf-8")


def prints_source(cell: NotebookNode) -> bool:
    """Return whether a cell prints source code, and nothing else."""
    outputs = cell.get("outputs", [])
    all_printed = all(output.get("name") == "stdout" for output in outputs)
    return "inspect.getsource(" in cell.source and all_printed


def text_of(output: NotebookNode) -> str:
    """Return an output as text, without colors and without lines that depend on the time."""
    is_stream = output.output_type == "stream"
    text = output.text if is_stream else output.data.get("text/plain", "")
    lines = _ESCAPES.sub("", text).split("\n")
    last_written = [_last_written(line) for line in lines]
    return SLOW_LINES.sub("", "\n".join(last_written)).strip("\n")


def _last_written(line: str) -> str:
    """Return what a terminal shows of a line at last: a progress bar writes over its line again and
    again, and goes back to the beginning by a carriage return.
    """
    writings = line.rstrip("\r").split("\r")
    return writings[-1].rstrip()


def _between_comments(shown: Sequence[str], is_timed: bool) -> str:
    """Return what a block of code printed and drew, as it stands below the block."""
    mark = f"output, {TIMED}" if is_timed else "output"
    joined = "\n\n".join(shown)
    return f"\n\n<!-- {mark} -->\n{joined}\n<!-- /output -->"


def _block_of_text(text: str, is_source: bool) -> str:
    """Return a text as a fenced block; of source, ruff is told that it is not to be formatted."""
    # A fence of more backticks than any in the text cannot be ended by the text.
    longest = max((len(found) for found in re.findall("`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    if is_source:
        source = textwrap.dedent(text)
        return f"<!-- fmt: off -->\n{fence}python\n{source}\n{fence}\n<!-- fmt: on -->"
    return f"{fence}text\n{text}\n{fence}"


def _is_picture(output: NotebookNode) -> bool:
    data = output.get("data", {})
    return "image/png" in data or _is_curve(output) or "<iframe" in data.get("text/html", "")


def _is_curve(output: NotebookNode) -> bool:
    """Return whether an output has the curves of a training, which are SVG within HTML."""
    page = output.get("data", {}).get("text/html", "")
    return _SVG.search(page) is not None and "<iframe" not in page


def _description(output: NotebookNode) -> str:
    """Return the text in place of a picture, for who does not see it."""
    named = _NAME.search(output.data.get("text/html", ""))
    return DRAWN if named is None else html.unescape(named["name"])


def _content(picture: Picture, place: Path) -> bytes:
    """Return the content of a picture's file."""
    if "image/png" in picture.data:
        return base64.b64decode(picture.data["image/png"])
    page = picture.data["text/html"]
    if picture.name.endswith(".svg"):
        return _standing_alone(page).encode()
    framed = _FRAMED_PAGE.search(page)
    if framed is not None:
        return photograph(html.unescape(framed["page"]))
    file = _FRAMED_FILE.search(page)
    assert file is not None, page
    return photograph((place / file["file"]).read_text(encoding="utf-8"))


def _standing_alone(page: str) -> str:
    """Return the SVG of a page as a file, with a size, a color and a font of its own: a file does
    not get them from the page around it.
    """
    found = _SVG.search(page)
    assert found is not None, page
    attributes = (
        f'xmlns="http://www.w3.org/2000/svg" width="{found["width"]}" height="{found["height"]}" '
        f'color="{_GRAY}" font-family="sans-serif" font-size="12"'
    )
    # The first style is that of the whole picture, and makes it as wide as the page.
    drawing = _SVG_STYLE.sub("", found[0], count=1)
    inside = drawing.removeprefix("<svg")
    return f"<svg {attributes}{inside}\n"


def _kept_picture(path: Path, name: str) -> NotebookNode:
    """Return a kept picture as the output of a notebook."""
    data = {"text/plain": name}
    if path.suffix == ".svg":
        data["image/svg+xml"] = path.read_text(encoding="utf-8")
    else:
        data["image/png"] = base64.b64encode(path.read_bytes()).decode("ascii")
    return new_output("display_data", data=data)
