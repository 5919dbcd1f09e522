"""`python -m docs.site`: build the site in build/site, check a chapter, or write the outputs of the
chapters and the notebooks.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat

from docs.site import outputs
from docs.site.build import build, execute_all, sharing_a_run
from docs.site.chapters import (
    CHAPTERS,
    NOTEBOOKS,
    ChapterError,
    code_cells,
    execute,
    notebook,
    problems,
    read,
)
from docs.site.lessons import LESSONS, execute_lesson
from docs.site.pages import page
from docs.site.photograph import NoBrowserError

FOLDER = Path("build").absolute()


def refuse_problems(paths: list[Path]) -> None:
    """Find out without executing them whether chapters are built as chapters are.

    Raises:
        ChapterError: what is wrong, a line each.
    """
    found = [f"{path}: no such file" for path in paths if not path.is_file()]
    if not found:
        for path in paths:
            found += problems(path)
    if found:
        raise ChapterError("\n".join(found))


def check(paths: list[Path], output: Path | None) -> None:
    """Check and execute chapters, in folders whose runs are kept between calls; write the page if
    asked to.

    Raises:
        ChapterError: what is wrong, a line each.
    """
    refuse_problems(paths)
    for path in paths:
        executed = execute(path, FOLDER / "book")
        if output:
            output.write_text(page(executed, path.stem), encoding="utf-8")


def write_outputs(paths: list[Path]) -> None:
    """Execute chapters one after another, write their outputs into them, and their notebooks.

    They are executed in a fresh folder: what a training prints depends on the runs that are there.

    Raises:
        ChapterError: a chapter has problems, or a cell failed; that chapter stays as it was.
        NoBrowserError: no browser is there to take the pictures of pages.
    """
    refuse_problems(paths)
    work = FOLDER / "outputs"
    shutil.rmtree(work, ignore_errors=True)
    training, *others = sharing_a_run(CHAPTERS)
    if training not in paths and set(others) & set(paths):
        execute(training, work)  # for its run
    for path in paths:
        executed = execute(path, work)
        outputs.write(path, code_cells(executed.cells), work / path.stem)
        write_notebook(path)
        (path.parent / outputs.MACHINE).write_text(outputs.machine() + "\n", encoding="utf-8")


def write_notebook(path: Path) -> None:
    """Write the notebook of a chapter, with the outputs that the chapter keeps."""
    nbformat.write(notebook(path), NOTEBOOKS / f"{path.stem}.ipynb")


def execute_lessons() -> None:
    """Execute the notebooks that are kept with their outputs, each in a fresh folder; write them.

    Raises:
        ChapterError: a cell failed; that notebook stays as it was.
    """
    for path in LESSONS:
        with tempfile.TemporaryDirectory() as folder:
            lesson = execute_lesson(path, Path(folder))
        nbformat.write(lesson, path)


def main() -> int:
    """Run a subcommand; return 0, or 2 with a line on each mistake of a chapter."""
    parser = argparse.ArgumentParser(prog="python -m docs.site", description=__doc__)
    commands = parser.add_subparsers(required=True, dest="command")
    building = commands.add_parser("build", help="build the site")
    building.add_argument("--no-outputs", action="store_true", help="do not execute the chapters")
    writing = commands.add_parser(
        "outputs", help="execute chapters, and write their outputs into them and their notebooks"
    )
    writing.add_argument(
        "chapters", type=Path, nargs="*", default=CHAPTERS, help="chapters; default: all"
    )
    commands.add_parser("notebooks", help="write the notebooks of the chapters into notebooks/")
    commands.add_parser("lessons", help="execute the notebooks that are kept with their outputs")
    checking = commands.add_parser("check", help="execute chapters and say which cell fails")
    checking.add_argument("chapters", type=Path, nargs="+")
    checking.add_argument("--output", type=Path, help="write the page, in Markdown")
    options = parser.parse_args()
    try:
        if options.command == "build":
            is_plain = options.no_outputs
            chapters = (
                {path: read(path) for path in CHAPTERS}
                if is_plain
                else execute_all(CHAPTERS, FOLDER / "book")
            )
            print(f"the site is {build(FOLDER, chapters) / 'index.html'}")
        elif options.command == "notebooks":
            for path in CHAPTERS:
                write_notebook(path)
        elif options.command == "outputs":
            write_outputs([path.absolute() for path in options.chapters])
        elif options.command == "lessons":
            execute_lessons()
        else:
            check(options.chapters, options.output)
    except (ChapterError, NoBrowserError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
