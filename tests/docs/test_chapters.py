"""The book and the notebooks beside it: what all chapters have in common, and every block and cell,
executed.
"""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from docs.site import chapters
from docs.site.chapters import (
    CHAPTERS,
    NOTEBOOKS,
    ChapterError,
    code_cells,
    execute,
    notebook,
    problems,
    read,
    tag,
)
from docs.site.lessons import LESSONS, execute_lesson
from docs.site.pages import page

WHOLE = "# A title\n\n{}\n\n## What you have read\n"
EXERCISE = """```python tags=["exercise"]
{}
```

<details>
<summary>Solution</summary>

```python tags=["solution"]
answer = 2
```

</details>

```python tags=["check"]
assert answer == 2, "it is two"
```"""
ELSEWHERE = re.compile(
    r"(?:src|data)=[\"']https?:|<link[^>]+https?:|url\(\s*[\"']?https?:|@import\s+[\"']https?:"
)


def chapter(folder: Path, text: str) -> Path:
    path = folder / "1_sample.md"
    path.write_text(WHOLE.format(text), encoding="utf-8")
    return path


def test_chapters_are_built_alike_and_what_is_not_is_found(tmp_path: Path) -> None:
    assert [problem for path in CHAPTERS for problem in problems(path)] == []
    for text, problem in (
        ("A loss of 1.52, as `0.1` in Python 3.11 is not.", "1_sample.md:3: 1.52 in the text"),
        ("# Another title", "not one title"),
        (EXERCISE.format("pass").replace("solution", "answer"), "unknown tag 'answer'"),
        (
            EXERCISE.format("pass").replace("</details>\n", ""),
            "a solution, or the code of a picture, that is not folded by <details>",
        ),
        (
            EXERCISE.format("pass").rpartition("\n\n")[0],
            "1_sample.md:4: an exercise is three cells",
        ),
    ):
        assert problem in "\n".join(problems(chapter(tmp_path, text)))
    path = chapter(tmp_path, "Text.")
    path.write_text(
        path.read_text(encoding="utf-8").replace("have read", "will read"), encoding="utf-8"
    )
    assert "no section" in "\n".join(problems(path))


@pytest.mark.slow
@pytest.mark.timeout(1800)  # it may wait for a chapter that another process executes
@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_every_block_runs(path: Path, executed, work: Path) -> None:  # type: ignore[no-untyped-def]
    text = page(executed(path), path.stem)
    assert ELSEWHERE.findall(text) == []
    assert str(work) not in text
    assert str(Path.home()) not in text


def test_code_folded_for_a_code_host_is_a_plain_hidden_cell(tmp_path: Path) -> None:
    code = '```python tags=["hide-input"]\nfault = 0.1\n```\n'
    path = chapter(tmp_path, f"<details>\n<summary>It tells</summary>\n\n{code}\n</details>\n")
    cells = read(path).cells
    assert [cell.source for cell in cells if cell.cell_type == "code"] == ["fault = 0.1"]
    assert not any("details" in cell.source for cell in cells)
    assert "fault" not in page(read(path), "1_sample")
    assert notebook(path).cells[2].metadata["jupyter"] == {"source_hidden": True}


@pytest.mark.slow
def test_check_fails_after_the_stub_and_names_the_failing_cell(tmp_path: Path) -> None:
    cells = execute(chapter(tmp_path, EXERCISE.format("answer = ...")), tmp_path).cells
    assert not any(cell.get("outputs") for cell in cells)
    with pytest.raises(ChapterError, match=r"1_sample\.md:4: the check passes with the stub"):
        execute(chapter(tmp_path, EXERCISE.format("answer = 2")), tmp_path)
    with pytest.raises(ChapterError, match="NameError: name 'answer'"):
        execute(chapter(tmp_path, EXERCISE.format("pass")), tmp_path)
    path = chapter(tmp_path, "```python\nfine = 1\n```\n\n```sh\ngpt --version\nfalse\n```")
    with pytest.raises(ChapterError, match=r"1_sample\.md:8: (?s:.*)non-zero exit status 1"):
        execute(path, tmp_path)


def test_notebooks_are_those_of_the_chapters_with_their_outputs() -> None:
    kept = {path.stem: nbformat.read(path, as_version=4) for path in NOTEBOOKS.glob("*.ipynb")}
    names = [path.stem for path in CHAPTERS]
    numbered = {name for name in kept if name[0].isdigit()}
    assert numbered <= set(names), "a notebook whose chapter is gone"
    for path in CHAPTERS:
        message = f"{path.name} has changed: run python -m docs.site notebooks"
        assert kept[path.stem] == notebook(path), message
    lessons = {path.stem for path in LESSONS}
    others = [each for name, each in kept.items() if name not in {*lessons, *names}]
    cells = [cell for each in others for cell in code_cells(each.cells)]
    assert not any(cell.outputs or cell.execution_count for cell in cells)


def test_notebook_has_outputs_but_not_those_of_its_exercises() -> None:
    first = notebook(CHAPTERS[0])
    exercises = [cell for cell in code_cells(first.cells) if tag(cell) in chapters.EXERCISE]
    assert len(exercises) == 6  # the solutions are text
    assert not any(cell.outputs for cell in exercises)
    outputs = [output for cell in code_cells(first.cells) for output in cell.outputs]
    assert outputs[0].text.startswith("465,048 characters")
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3


def test_chapter_opens_in_colab_if_the_repository_has_an_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = read(CHAPTERS[0])
    assert "Colab" not in page(first, "1_counting")
    monkeypatch.setattr(chapters, "REPOSITORY", "owner/gpt")
    assert (
        "(https://colab.research.google.com/github/owner/gpt/blob/main/notebooks/1_counting.ipynb)"
        in page(first, "1_counting")
    )
    assert 'GPT = "git+https://github.com/owner/gpt"' in notebook(CHAPTERS[0]).cells[1].source


@pytest.mark.slow
def test_other_notebooks_run_without_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("PYTHONPATH", str(NOTEBOOKS.parent)),
        ("GPT_OFFLINE", "1"),
        ("OMP_NUM_THREADS", "1"),
    ):
        monkeypatch.setenv(name, value)
    outputs: dict[str, list[dict[str, Any]]] = {}
    for name in ("a_head_that_copies", "your_own_parts"):
        read = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
        resources = {"metadata": {"path": str(tmp_path)}}
        NotebookClient(read, timeout=120, kernel_name="python3", resources=resources).execute()
        outputs[name] = [
            output for cell in read.cells if cell.cell_type == "code" for output in cell.outputs
        ]
    copies = outputs["a_head_that_copies"]
    printed = "".join(output["text"] for output in copies if output.get("name") == "stdout")
    without = [float(bits) for bits in re.findall(r"([\d.]+) bits", printed)]
    assert min(without[2:]) < 0.5  # of the upper layer's heads, one copies
    assert max(without[2:]) > 3
    assert sum("<iframe" in output.get("data", {}).get("text/html", "") for output in copies) == 2
    assert (tmp_path / "my_parts.py").is_file()
    assert any("image/png" in output.get("data", {}) for output in outputs["your_own_parts"])


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_lessons_are_kept_with_all_their_outputs(path: Path) -> None:
    lesson = nbformat.read(path, as_version=4)
    cells = [cell for cell in lesson.cells if cell.cell_type == "code"]
    # executed from top to bottom in a fresh kernel
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert {output.output_type for output in outputs} == {"stream", "display_data"}
    assert not [output for output in outputs if output.get("name") == "stderr"]
    assert sum(output.output_type == "display_data" for output in outputs) == 2  # pictures
    text = path.read_text(encoding="utf-8")
    assert len(text) < 200_000
    assert not [place for place in (Path.home(), NOTEBOOKS.parent, "/tmp") if str(place) in text]
    assert ELSEWHERE.findall(page(lesson, path.stem)) == []


@pytest.mark.slow
def test_executed_lesson_has_no_times_and_names_the_failing_cell(tmp_path: Path) -> None:
    path = tmp_path / "lesson.ipynb"
    cells = [nbformat.v4.new_code_cell("print('step 3: evaluating\\ndone')", id="first")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    assert printed_by(execute_lesson(path, tmp_path)) == "done\n"
    cells.append(nbformat.v4.new_code_cell("1 / 0", id="second"))
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    with pytest.raises(ChapterError, match=r"lesson\.ipynb, cell 1: (?s:.*)ZeroDivisionError"):
        execute_lesson(path, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # on a busy machine a training takes minutes
def test_names_are_new_and_end_where_the_lens_says(tmp_path: Path) -> None:
    printed = printed_by(execute_lesson(LESSONS[0], tmp_path))
    assert "data.items=lines" in printed
    assert "on both sides: set()" in printed
    by_hand = number_in(r"held out: ([\d.]+) nats per character", printed)
    assert by_hand == pytest.approx(number_in(r"'loss': ([\d.]+)", printed), abs=1e-3)
    assert by_hand < 1.5
    counted = number_in(r"(\d+) of 1000 are new", printed)
    assert counted == number_in(r"'new_samples': (\d+)", printed)
    assert counted > 800
    after_last_block = re.findall(r"ninety(?: degrees)? .* ([\d.]+)%\n", printed)
    assert float(after_last_block[0]) < 20 < float(after_last_block[1])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_answers_are_better_from_pairs_than_from_plain_text(tmp_path: Path) -> None:
    printed = printed_by(execute_lesson(LESSONS[1], tmp_path))
    assert "data.items=pairs" in printed
    assert "58+73▸131■5+53▸58■" in printed
    assert "      ^^^^     ^^^ " in printed
    pairs = number_in(r"pairs +(\d+) of 1000 exact", printed)
    plain_text = number_in(r"plain text, best +(\d+) of 1000 exact", printed)
    assert pairs > 800
    assert pairs > plain_text
    assert number_in(r"(\d+) of 200 last answers", printed) > 150
    assert printed.count("> +7") == 2  # a talk with each of two models


def printed_by(lesson: nbformat.NotebookNode) -> str:
    """Return all that the cells of a notebook have printed."""
    outputs = [output for cell in lesson.cells for output in cell.get("outputs", [])]
    return "".join(output.text for output in outputs if output.output_type == "stream")


def number_in(pattern: str, text: str) -> float:
    """Return the number in the only group of a pattern, where it is first found."""
    found = re.search(pattern, text)
    assert found is not None, f"no {pattern} in {text}"
    return float(found[1])
