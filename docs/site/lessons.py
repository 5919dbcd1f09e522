"""The notebooks that are kept with their outputs: executed, and written without what is different
each time.
"""

import re
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

from docs.site.chapters import NOTEBOOKS, ChapterError, kernel_environment, plain
from docs.site.outputs import SLOW_LINES

LESSONS = [NOTEBOOKS / f"{name}.ipynb" for name in ("names", "answers")]
"""In the order in which they are to be read."""
CELL_TIMEOUT = 600
"""Seconds that a cell may take. One that trains takes 20 on two idle cores."""
_SECONDS = re.compile(r"<span>[\d:?]+</span>")
"""The time that the curve of a training shows."""


def execute_lesson(path: Path, folder: Path) -> NotebookNode:
    """Execute a notebook in a kernel that works in `folder`; return it with its outputs.

    Raises:
        ChapterError: a cell failed.
    """
    lesson = nbformat.read(path, as_version=4)
    metadata = lesson.metadata.copy()
    client = NotebookClient(
        lesson,
        timeout=CELL_TIMEOUT,
        kernel_name="python3",
        coalesce_streams=True,
        record_timing=False,
        extra_arguments=["--log-level=40"],  # the kernel warns of TCP
    )
    with client.setup_kernel(env=kernel_environment(), cwd=str(folder)):
        for number, cell in enumerate(lesson.cells):
            try:
                client.execute_cell(cell, number)
            except CellExecutionError as error:
                raise ChapterError(f"{path}, cell {number}: {plain(error)}") from None
    lesson.metadata = metadata  # the kernel adds the version of Python
    for cell in lesson.cells:
        for output in cell.get("outputs", []):
            _remove_times(output)
    return lesson


def _remove_times(output: NotebookNode) -> None:
    """Remove from an output what depends on how long the cell took."""
    if output.output_type == "stream":
        output.text = SLOW_LINES.sub("", output.text)
    elif "text/html" in output.get("data", {}):
        output.data["text/html"] = _SECONDS.sub("", output.data["text/html"])
