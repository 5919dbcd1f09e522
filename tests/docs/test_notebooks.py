"""The notebooks beside the book as a learner runs them: every cell, in a kernel of their own, without network."""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def run(name: str, folder: Path) -> list[list[dict[str, Any]]]:
    """The outputs of each cell of code; a cell that fails raises its error here."""
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


def html_of(outputs: list[dict[str, Any]]) -> str:
    return "".join(output["data"].get("text/html", "") for output in outputs if "data" in output)


def printed(outputs: list[dict[str, Any]]) -> str:
    return "".join(output["text"] for output in outputs if output.get("name") == "stdout")


@pytest.fixture(autouse=True)
def _kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that finds the package, has no network, and leaves the other core to the other tests."""
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOKS.parent))
    monkeypatch.setenv("GPT_OFFLINE", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_no_outputs_are_kept(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


@pytest.mark.slow
def test_a_head_that_copies_is_found_and_missed(tmp_path: Path) -> None:
    outputs = run("a_head_that_copies", tmp_path)
    whole, without = map(float, re.findall(r"([\d.]+) bits", "".join(map(printed, outputs))))
    assert whole < 0.5
    assert without > whole + 1
    assert sum("<iframe" in html_of(cell) for cell in outputs) == 2


@pytest.mark.slow
def test_parts_of_ones_own_train(tmp_path: Path) -> None:
    outputs = run("your_own_parts", tmp_path)
    assert (tmp_path / "my_parts.py").is_file()
    assert any("image/png" in output.get("data", {}) for cell in outputs for output in cell)
