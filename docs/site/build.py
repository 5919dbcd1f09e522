"""Build the site: chapters executed side by side, pages gathered in build/pages, then MkDocs."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import yaml

from docs.site import reference
from docs.site.chapters import CHAPTERS, NOTEBOOKS, ROOT, execute
from docs.site.lessons import LESSONS
from docs.site.links import adapt, place
from docs.site.pages import page
from gpt.cli.commands import COMMANDS

APPENDICES = ("book/questions.md", "book/mathematics.md")
LIVE_MODEL = "book/9_letting_it_out/model.html"
"""The exported page of the model that the book trains, in the site."""
GUIDES = {
    "Start": ["installing", "training", "generation", "inspection", "python"],
    "Go on": ["export", "serving", "performance", "distributed", "reliability"],
    "How it works": ["architecture", "changing"],
}


def build(folder: Path, chapters: dict[Path, nbformat.NotebookNode]) -> Path:
    """Build the site of executed chapters below a folder that has their working folders, and return
    where it is.

    Raises:
        subprocess.CalledProcessError: MkDocs refuses the pages, as with a link that leads nowhere;
        it has said why.
    """
    pages = folder / "pages"
    for old in (pages, folder / "site"):
        shutil.rmtree(old, ignore_errors=True)
    for path, chapter in chapters.items():
        _write_chapter(path, chapter, pages, folder / "book" / path.stem / "shown")
    for path in LESSONS:
        _write_lesson(path, pages)
    _write_generated(pages)
    _write_documents(pages)
    look = Path(__file__).parent / "mkdocs.yml"
    places = {"INHERIT": str(look), "docs_dir": str(pages), "site_dir": str(folder / "site")}
    _write(folder / "mkdocs.yml", yaml.safe_dump({**places, "nav": navigation()}))
    mkdocs = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(folder / "mkdocs.yml")]
    subprocess.run(mkdocs, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, cwd=ROOT)
    for path in (folder / "site").rglob("*.html"):  # the theme gives its search no name
        _write(
            path,
            path.read_text(encoding="utf-8").replace(
                'role="dialog"', 'role="dialog" aria-label="Search"'
            ),
        )
    return folder / "site"


def execute_all(chapters: Sequence[Path], work: Path) -> dict[Path, nbformat.NotebookNode]:
    """Execute chapters, two at a time, in fresh folders below `work`; return them with their
    outputs, in order.

    Raises:
        ChapterError: a cell failed.
    """
    shutil.rmtree(work, ignore_errors=True)
    sharing = sharing_a_run(chapters)
    with ThreadPoolExecutor(2) as pool:  # more would disturb the chapters that measure times
        first = [*sharing[:1], *(path for path in chapters if path not in sharing)]
        jobs = {path: pool.submit(execute, path, work) for path in first}
        for path in sharing[:1]:
            jobs[path].result()
        jobs |= {path: pool.submit(execute, path, work) for path in sharing[1:]}
        return {path: jobs[path].result() for path in chapters}


def sharing_a_run(chapters: Sequence[Path]) -> list[Path]:
    """Return the chapters that train one run: the first does, and the others find it."""
    return [path for path in chapters if 'name="book"' in path.read_text(encoding="utf-8")]


def _write_chapter(path: Path, chapter: nbformat.NotebookNode, pages: Path, shown: Path) -> None:
    for cell in chapter.cells:
        if cell.cell_type == "markdown":
            cell.source, linked = adapt(cell.source, f"docs/book/{path.name}")
            _write_linked(linked, pages)
    _write(
        pages / "book" / path.name, f"---\nsearch:\n  boost: 2\n---\n\n{page(chapter, path.stem)}"
    )
    if shown.is_dir():
        shutil.copytree(shown, pages / "book" / path.stem)


def _write_lesson(path: Path, pages: Path) -> None:
    """Write the page of a notebook that is kept with its outputs."""
    lesson = nbformat.read(path, as_version=4)
    for cell in lesson.cells:
        if cell.cell_type == "markdown":
            cell.source, linked = adapt(cell.source, f"notebooks/{path.name}")
            _write_linked(linked, pages)
    _write(pages / "book" / f"{path.stem}.md", page(lesson, path.stem))


def _write_generated(pages: Path) -> None:
    """Write the pages that the program itself fills in."""
    for name in reference.NAMES:
        _write(pages / "reference" / f"{name}.md", reference.names(name))
    for name in COMMANDS:
        _write(pages / "commands" / f"{name}.md", reference.command(name))
    _write(pages / "keys.md", reference.configuration_keys())


def _write_documents(pages: Path) -> None:
    """Write docs/, the notebooks, the README, and every file that a page links to."""
    here, book = Path(__file__).parent, pages / "book"
    book.mkdir(exist_ok=True)
    pictures = [*(ROOT / "docs").glob("*.png"), *(ROOT / "docs").glob("*.svg")]
    for path in [here / "site.css", here / "iframe-worker.js", *pictures]:
        shutil.copy(path, pages)
    for path in NOTEBOOKS.glob("*.ipynb"):
        shutil.copy(path, book)
    guides = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    _write_linked({"README.md", *guides, *(f"docs/{name}" for name in APPENDICES)}, pages)
    if (pages / LIVE_MODEL).is_file():
        _show_live_model(pages / place("README.md"))


def _show_live_model(first_page: Path) -> None:
    """Put the page of a model, which the last chapter exports, in the place of its picture."""
    text = first_page.read_text(encoding="utf-8")
    frame = f'<iframe class="live-model" src="{LIVE_MODEL}" title="A model to write with"></iframe>'
    changed, count = re.subn(r"^!\[[^\n]*\]\(playground\.png\)$", frame, text, flags=re.MULTILINE)
    assert count == 1, "the README has one picture of a page"
    _write(first_page, changed)


def _write_linked(files: set[str], pages: Path) -> None:
    """Write the page of each file, and of those that it links to.

    What is no Markdown is shown as it is.
    """
    for name in sorted(files):
        path, target = ROOT / name, pages / place(name)
        if target.exists() or not path.is_file():
            continue  # MkDocs reports a link that leads nowhere
        text = path.read_text(encoding="utf-8")
        if path.suffix != ".md":
            _write(
                target,
                (
                    "---\nsearch:\n  exclude: true\n---\n\n# "
                    f"{name}\n\n````{_language(path)}\n{text}\n````\n"
                ),
            )
            continue
        adapted, linked = adapt(text, name)
        _write(target, adapted)
        _write_linked(linked, pages)


def _language(path: Path) -> str:
    return {".py": "python", ".yaml": "yaml", ".h": "cpp", ".cpp": "cpp", ".js": "js"}.get(
        path.suffix, "text"
    )


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def navigation() -> list[object]:
    """Return the site's sections."""
    chapters = [f"book/{path.name}" for path in CHAPTERS]
    return [
        {"Home": "index.md"},
        {"Book": ["contents.md", *chapters, *APPENDICES]},
        {"Notebooks": [f"book/{path.stem}.md" for path in LESSONS]},
        {
            "Guides": [
                {title: [f"{name}.md" for name in listed]} for title, listed in GUIDES.items()
            ]
        },
        {"Commands": [f"commands/{name}.md" for name in COMMANDS]},
        {"Reference": ["keys.md", *(f"reference/{name}.md" for name in reference.NAMES)]},
    ]
