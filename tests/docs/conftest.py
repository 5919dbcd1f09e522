"""The book's chapters with their outputs: each is executed once, by whichever test asks first."""

from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from filelock import FileLock

from docs.site.build import sharing_a_run
from docs.site.chapters import CHAPTERS, execute

Executed = Callable[[Path], nbformat.NotebookNode]


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder below which chapters are executed, of all processes that test."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if folder.name.startswith("popen-") else folder) / "site"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def executed(work: Path) -> Executed:
    """Execute a chapter, after the one that trains its run; or return what came of it in another
    test.
    """

    def run(path: Path) -> nbformat.NotebookNode:
        sharing = sharing_a_run(CHAPTERS)
        if path in sharing[1:]:
            run(sharing[0])
        kept = work / f"{path.stem}.ipynb"
        with FileLock(f"{kept}.lock"):
            if not kept.exists():
                nbformat.write(execute(path, work / "book"), kept)
        return nbformat.read(kept, as_version=4)

    return run
