"""Outputs that chapters keep in their Markdown: written, read back, those of today's code."""

import io
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from PIL import Image

from docs.site import outputs
from docs.site.__main__ import refuse_problems
from docs.site.chapters import (
    CHAPTERS,
    ChapterError,
    code_cells,
    execute,
    notebook,
    problems,
    read,
)
from docs.site.outputs import comparable, kept_outputs, with_outputs, without_outputs
from docs.site.photograph import NoBrowserError, photograph
from programs import find_browser

MOST_BYTES = 2_000_000
"""Of all pictures together: they stay in the history of the repository."""
SAMPLE = """# A title

```python
print("one")
```

```text
print("a drawing, and no code")
```

```python tags=["timed"]
print("took 12.5 seconds")
```

<details>
<summary>Code of the picture</summary>

```python tags=["hide-input"]
import matplotlib.pyplot as plt

plt.style.use("gpt.extras.book")
figure, axes = plt.subplots(figsize=(1, 1))
plt.show()
```

</details>

```python
import inspect
from textwrap import dedent

print(inspect.getsource(dedent).splitlines()[0])
```

## What you have read
"""


def sample(folder: Path) -> Path:
    path = folder / "1_sample.md"
    path.write_text(SAMPLE, encoding="utf-8")
    return path


def printing(*texts: str) -> list[NotebookNode]:
    """Return an executed cell for each block of the sample, which has printed a text."""
    cells = []
    for text in texts:
        output = nbformat.v4.new_output("stream", name="stdout", text=text)
        cells.append(nbformat.v4.new_code_cell(outputs=[output] if text else []))
    cells[1].metadata["tags"] = ["timed"]
    return cells


@pytest.mark.slow
@pytest.mark.timeout(1800)  # it may wait for a chapter that another process executes
@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_kept_outputs_are_those_of_a_new_execution(path: Path, executed) -> None:  # type: ignore[no-untyped-def]
    machine = (path.parent / outputs.MACHINE).read_text(encoding="utf-8").strip()
    if outputs.machine() != machine:
        pytest.skip(f"the outputs are those of {machine}; here is {outputs.machine()}")
    kept = path.read_text(encoding="utf-8")
    written, _ = with_outputs(kept, code_cells(executed(path).cells), path.stem)
    message = f"{path.name}: run python -m docs.site outputs"
    assert comparable(written).splitlines() == comparable(kept).splitlines(), message


def test_all_pictures_are_shown_and_small() -> None:
    folder = CHAPTERS[0].parent
    texts = [path.read_text(encoding="utf-8") for path in folder.glob("*.md")]
    pictures = list((folder / outputs.PICTURES).iterdir())
    assert [path.name for path in pictures if not any(path.name in text for text in texts)] == []
    assert sum(path.stat().st_size for path in pictures) < MOST_BYTES


@pytest.mark.slow
def test_outputs_are_written_below_their_blocks_and_read_back(tmp_path: Path) -> None:
    path = sample(tmp_path)
    assert list(problems(path)) == []
    cells = code_cells(execute(path, tmp_path / "work").cells)
    outputs.write(path, cells, tmp_path / "work" / path.stem)
    text = path.read_text(encoding="utf-8")
    assert 'print("one")\n```\n\n<!-- output -->\n```text\none\n```\n<!-- /output -->' in text
    assert "<!-- output, timed -->\n```text\ntook 12.5 seconds\n```" in text
    picture = "![What the code above draws](pictures/1_sample-1.png)"
    assert f"</details>\n\n<!-- output -->\n{picture}\n<!-- /output -->" in text
    assert "```python\ndef dedent(text):\n```" in text
    assert without_outputs(text) == SAMPLE

    assert list(problems(path)) == []
    assert [cell.source for cell in read(path).cells] == [
        cell.source for cell in read(sample(tmp_path / "work")).cells
    ]
    one, timed, drawn, source = kept_outputs(path)
    assert [each[0].get("text") for each in (one, timed, source)] == [
        "one\n",
        "took 12.5 seconds\n",
        "def dedent(text):\n",
    ]
    assert drawn[0].data["image/png"] == cells[2].outputs[0].data["image/png"].strip()
    assert sum(len(cell.get("outputs", [])) for cell in notebook(path).cells) == 4


def test_numbers_are_compared_unless_they_are_timed() -> None:
    kept, _ = with_outputs(SAMPLE, printing("loss 1.5", "took  9.5 s", "", ""), "1_sample")
    slower, _ = with_outputs(SAMPLE, printing("loss 1.5", "took 12.5 s", "", ""), "1_sample")
    worse, _ = with_outputs(SAMPLE, printing("loss 1.6", "took  9.5 s", "", ""), "1_sample")
    other, _ = with_outputs(SAMPLE, printing("loss 1.5", "lasted 9.5 s", "", ""), "1_sample")
    assert comparable(slower) == comparable(kept)
    assert comparable(worse) != comparable(kept)
    assert comparable(other) != comparable(kept)


def test_new_outputs_replace_old_ones() -> None:
    kept, _ = with_outputs(SAMPLE, printing("old", "", "", ""), "1_sample")
    again, _ = with_outputs(kept, printing("new", "", "", ""), "1_sample")
    assert "old" not in again
    assert again.count("<!-- output") == 1


def test_progress_and_fences_in_a_text_do_not_break_its_block() -> None:
    printed = "10%\r100%\nstep 3: evaluating\n\x1b[1m```\x1b[0m"
    text, _ = with_outputs(SAMPLE, printing(printed, "", "", ""), "1_sample")
    assert "<!-- output -->\n````text\n100%\n```\n````\n<!-- /output -->" in text
    assert without_outputs(text) == SAMPLE


def test_file_that_is_no_chapter_is_refused_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(ChapterError, match=r"2_none\.md: no such file"):
        refuse_problems([tmp_path / "2_none.md"])


@pytest.mark.browser
def test_page_is_photographed_until_it_ends() -> None:
    find_browser()  # or this is skipped
    page = "<body style='margin:0'><div style='height:100px;background:#369'></div>"
    picture = Image.open(io.BytesIO(photograph(page)))
    assert picture.size == (760, 112)


def test_photograph_without_a_browser_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NoBrowserError, match="make browser"):
        photograph("<p>")
