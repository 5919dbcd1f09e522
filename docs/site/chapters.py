"""The chapters of the book: read from Jupytext Markdown, checked, executed in a kernel, written as
notebooks.
"""

import copy
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jupytext
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from docs.site.outputs import TIMED, kept_outputs, without_outputs

ROOT = Path(__file__).resolve().parents[2]
_BOOK = ROOT / "docs" / "book"
_WORKSHOPS = ("your_own_gpt", "byte_pairs", "scaling", "gpt2", "clinic")
"""Names of the chapters without a number, in the order in which they are listed."""
CHAPTERS = [
    *sorted(_BOOK.glob("[0-9]_*.md")),
    *(_BOOK / f"{name}.md" for name in _WORKSHOPS),
]
NOTEBOOKS = ROOT / "notebooks"
EXERCISE = ["exercise", "solution", "check"]
LAST = "## What you have read"
REPOSITORY = ""
"""`owner/name` on GitHub, once there is one: pages link to each chapter in Colab, which installs
from it.
"""
INSTALL = (
    'GPT = "{}"  # where gpt is not installed, as in Colab: "git+" and the address of its '
    "repository, or a wheel\n"
    "if GPT:\n"
    "    %pip install --quiet {{GPT}}"
)
_NOTEBOOK_LINKS = {
    r"\]\(\.\./(?!\.\./)": "](../docs/",
    r"\]\(\.\./\.\./": "](../",
    rf"\]\(({'|'.join(path.stem for path in CHAPTERS)})\.md": r"](\1.ipynb",
}
# Without this header, Jupytext takes the language that most blocks are written in.
_HEADER = "---\njupyter:\n  jupytext:\n    main_language: python\n---\n\n"
# A code host shows the Markdown of a chapter itself, and there this is what folds a solution, and
# the code of a picture.
_FOLDED = re.compile(
    r"<details>\n<summary>[^\n]*</summary>\n\n"
    r"(```python tags=\[\"(?:solution|hide-input)\"[^\n]*\]\n.*?\n```\n)\n</details>\n",
    re.DOTALL,
)
_TO_FOLD = re.compile(r"^```python tags=\[\"(?:solution|hide-input)\"", re.MULTILINE)
_DECIMAL = re.compile(r"(?<!Python )(?<![\w.])\d+\.\d+(?![.\w]*\w*\()")
_CODE = re.compile(r"```.*?```|`[^`]*`|\]\([^)]*\)", re.DOTALL)


class ChapterError(Exception):
    """A chapter that breaks its contract, or has a cell that fails: where, and what."""


def read(path: Path) -> NotebookNode:
    """Return a chapter as a notebook without outputs.

    The HTML that folds a cell is left out, since pages and notebooks fold the cell themselves.
    """
    text = _FOLDED.sub(r"\1", without_outputs(path.read_text(encoding="utf-8")))
    notebook = jupytext.reads(_HEADER + text, fmt="md")
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # jupytext's are random
    return notebook


def code_cells(cells: list[NotebookNode]) -> list[NotebookNode]:
    """Return the cells that hold code."""
    return [cell for cell in cells if cell.cell_type == "code"]


def tag(cell: NotebookNode) -> str:
    """Return what a cell is for: "exercise", "solution", "check", "hide-input", "timed", or
    nothing.
    """
    return next(iter(cell.metadata.get("tags", [])), "")


def problems(path: Path) -> Iterator[str]:
    """Yield what in a chapter breaks the contract of all chapters, as `path:line: what`."""
    cells = read(path).cells
    prose = [cell for cell in cells if cell.cell_type == "markdown"]
    if (
        sum(len(re.findall(r"^# ", _CODE.sub("", cell.source), re.MULTILINE)) for cell in prose)
        != 1
    ):
        yield f"{path}: not one title"
    if LAST not in [line for cell in prose for line in cell.source.splitlines()]:
        yield f"{path}: no section {LAST!r}"
    text = without_outputs(path.read_text(encoding="utf-8"))
    if len(_FOLDED.findall(text)) != len(_TO_FOLD.findall(text)):
        yield f"{path}: a solution, or the code of a picture, that is not folded by <details>"
    tags = [tag(cell) for cell in cells]
    for number, name in enumerate(tags):
        if name not in {"", "hide-input", TIMED, *EXERCISE}:
            yield f"{_place(path, cells[number])}: unknown tag {name!r}"
        start = number - EXERCISE.index(name) if name in EXERCISE else number
        if name in EXERCISE and tags[max(start, 0) : start + 3] != EXERCISE:
            yield (
                f"{_place(path, cells[number])}: an exercise is three cells: {', '.join(EXERCISE)}"
            )
    for cell in prose:
        for found in _DECIMAL.findall(_CODE.sub("", cell.source)):
            yield f"{_place(path, cell, found)}: {found} in the text; numbers come from outputs"


def _place(path: Path, cell: NotebookNode, within: str = "") -> str:
    """Return where a cell begins, or a text within it, as `path:line`."""
    text, source = path.read_text(encoding="utf-8"), cell.source.removeprefix("%%sh\n")
    return f"{path}:{text[: max(text.find(source), 0) + source.find(within)].count(chr(10)) + 1}"


def execute(path: Path, folder: Path) -> NotebookNode:
    """Execute a chapter in a kernel, in a fresh folder below `folder`, and return it with its
    outputs.

    A run called `book` is kept in `folder`, from where the next chapter gets a copy, since a run is
    locked while a chapter uses it. The check of an exercise must fail after the stub, and pass
    after the solution.

    Raises:
        ChapterError: a cell failed, or a check passed with the stub.
    """
    place = folder / path.stem
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    kept, run = folder / "runs" / "book", place / "runs" / "book"
    if kept.exists():
        shutil.copytree(kept, run)
    notebook, start = read(path), time.monotonic()
    quiet = ["--log-level=40"]  # it warns of TCP
    client = NotebookClient(
        notebook, timeout=600, kernel_name="python3", coalesce_streams=True, extra_arguments=quiet
    )
    with client.setup_kernel(env=kernel_environment(), cwd=str(place)):
        for number, cell in enumerate(notebook.cells):
            if cell.cell_type == "code":
                _run(client, path, number)
    if run.exists() and not kept.exists():
        shutil.copytree(run, kept)
    print(f"{path.name}: {time.monotonic() - start:.1f} s", flush=True)
    return notebook


def kernel_environment() -> dict[str, str]:
    """Return what a kernel sees: this checkout, its `gpt`, no network, no GPU, on which numbers
    would differ, and one core, since chapters run side by side.
    """
    first = {"PYTHONPATH": ROOT, "PATH": Path(sys.executable).parent}
    joined = {
        name: os.pathsep.join([str(value), os.environ.get(name, "")])
        for name, value in first.items()
    }
    settings = {
        "GPT_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "80",
    }
    return {**os.environ, **joined, **settings}


def _run(client: NotebookClient, path: Path, number: int) -> None:
    """Execute a cell; after the stub of an exercise, also its check."""
    cell = client.nb.cells[number]
    if tag(cell) == "exercise":
        stub, check = cell, copy.deepcopy(client.nb.cells[number + 2])
        try:
            client.execute_cell(stub, number)
            client.execute_cell(check, number)
        except CellExecutionError as error:
            if error.ename not in ("AssertionError", "NotImplementedError"):
                raise ChapterError(
                    f"{_place(path, cell)}: the check of the stub ends with {plain(error)}"
                ) from None
            stub.outputs = []
            return
        raise ChapterError(f"{_place(path, cell)}: the check passes with the stub")
    try:
        client.execute_cell(cell, number)
    except CellExecutionError as error:
        raise ChapterError(f"{_place(path, cell)}: {plain(error)}") from None


def plain(error: CellExecutionError) -> str:
    """Return an error with its traceback, or what a shell printed, without the colors of a
    terminal.
    """
    return re.sub(r"\x1b\[[0-9;]*m", "", str(error))


def notebook(path: Path) -> NotebookNode:
    """Return the notebook of a chapter, with the outputs that the chapter keeps: first what
    installs the package, the solutions folded.

    The cells of an exercise have no outputs, since it is not solved in the notebook.
    """
    cells = read(path).cells
    for cell, outputs in zip(code_cells(cells), kept_outputs(path), strict=True):
        if tag(cell) not in EXERCISE:
            cell.outputs = outputs
    address = REPOSITORY and f"git+https://github.com/{REPOSITORY}"
    cells.insert(1, new_code_cell(INSTALL.format(address), id="install"))
    for number, cell in enumerate(cells):
        if cell.cell_type == "markdown":
            for link, there in _NOTEBOOK_LINKS.items():
                cell.source = re.sub(link, there, cell.source)
        elif tag(cell) == "solution":
            code = f"```python\n{cell.source}\n```"
            folded = f"<details><summary>Solution</summary>\n\n{code}\n\n</details>"
            cells[number] = new_markdown_cell(folded, id=cell.id)
        elif tag(cell) == "hide-input":
            cell.metadata["jupyter"] = {"source_hidden": True}
        elif tag(cell) == "check":
            # so that "Run all" goes on after an unsolved exercise
            cell.metadata["tags"].append("raises-exception")
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return new_notebook(
        cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}}
    )
