"""Pages of the site: their place, links and formulas, executed chapters, and what the program fills in."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

import gpt
from docs.site import build, reference
from docs.site.chapters import CHAPTERS, ROOT
from docs.site.links import adapt
from docs.site.pages import page
from gpt.cli.commands import COMMANDS
from gpt.cli.explain import VIEWS


def test_every_document_has_its_place() -> None:
    listed = re.findall(r'"([^"]+\.md)"', json.dumps(build.navigation()))
    assert len(listed) == len(set(listed))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} <= set(listed)
    assert {f"book/{path.name}" for path in CHAPTERS} <= set(listed)


def test_chapter_that_trains_the_run_comes_before_those_that_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["alone", 'train(name="book")', 'use(name="book")', 'use again(name="book")', "alone"]
    chapters = [tmp_path / f"{number}_x.md" for number in range(len(texts))]
    for path, text in zip(chapters, texts, strict=True):
        path.write_text(text, encoding="utf-8")
    ended: list[Path] = []

    def execute(path: Path, work: Path) -> str:
        time.sleep(0.1 * (path == chapters[1]))
        ended.append(path)
        return path.stem

    monkeypatch.setattr(build, "execute", execute)
    assert build.execute_all(chapters, tmp_path / "work") == {path: path.stem for path in chapters}
    assert ended.index(chapters[1]) < min(ended.index(chapters[2]), ended.index(chapters[3]))


@pytest.mark.parametrize(
    ("path", "link", "adapted", "made"),
    [
        ("docs/data.md", "training.md#model", "training.md#model", set()),
        ("docs/data.md", "../README.md#results", "readme.md#results", {"README.md"}),
        ("docs/data.md", "../gpt/system/files.py", "source/gpt/system/files.py.md", {"gpt/system/files.py"}),
        ("docs/book/1_x.md", "../../gpt/system/files.py", "../source/gpt/system/files.py.md", {"gpt/system/files.py"}),
        ("docs/book/1_x.md", "../data.md", "../data.md", set()),
        ("docs/data.md", "../notebooks/1_x.ipynb", "book/1_x.ipynb", set()),
        ("README.md", "docs/data.md", "data.md", set()),
        ("benchmarks/LOG.md", "../docs/attention.png", "../../attention.png", set()),
        ("docs/data.md", "https://arxiv.org/abs/1706.03762", "https://arxiv.org/abs/1706.03762", set()),
        ("docs/data.md", "#here", "#here", set()),
    ],
)
def test_links_lead_to_where_the_site_has_a_file(path: str, link: str, adapted: str, made: set[str]) -> None:
    assert adapt(f"See [it]({link}).", path) == (f"See [it]({adapted}).", made)


def test_formulas_need_no_script_and_code_stays() -> None:
    text, _ = adapt("$x$ and\n\n$$\ny\n$$\n\n`$z$ [a](../b)`\n\n````sh\n```\n$RUN $x\n````\n", "docs/data.md")
    assert text.count("<math") == 2
    assert text.endswith("`$z$ [a](../b)`\n\n````sh\n```\n$RUN $x\n````\n")


def shown(source: str, *outputs: Any, tag: str = "") -> str:
    """The page of a notebook with one cell of code, without its title."""
    cell = new_code_cell(source, outputs=list(outputs), metadata={"tags": [tag]} if tag else {})
    text = page(new_notebook(cells=[new_markdown_cell("# Title\n\nText."), cell]), "1_sample")
    head, _, rest = text.partition("Text.")
    assert head == "# Title\n\n*This chapter as a [notebook](1_sample.ipynb).*\n\n"
    return rest


def stream(text: str) -> Any:
    return new_output("stream", name="stdout", text=text)


def display(kind: str, text: str) -> Any:
    return new_output("display_data", data={kind: text, "text/plain": "x"})


@pytest.mark.parametrize(
    ("output", "read"),
    [
        (stream("10%\r50%\r100%\ndone\n"), '<div class="output"><pre tabindex="0">100%&#10;done</pre></div>'),
        (stream("50%\r"), '<pre tabindex="0">50%</pre>'),
        (stream("\x1b[31mred\x1b[0m <b>"), '<pre tabindex="0">red &lt;b&gt;</pre>'),
        (stream("a\n\n  b\n"), '<pre tabindex="0">a&#10;&#10;  b</pre>'),
        (
            display("text/html", '<iframe src="shown/x.html">\n\n</iframe>'),
            '<div class="output"><iframe src="1_sample/x.html">\n</iframe></div>',
        ),
        (display("text/html", '<iframe srcdoc="a\n\nb"></iframe>'), '<iframe srcdoc="a&#10;&#10;b"></iframe>'),
        (display("image/png", "AAAA\n"), 'src="data:image/png;base64,AAAA"'),
    ],
)
def test_output_reads_as_in_a_terminal_or_notebook(output: Any, read: str) -> None:
    assert read in shown("f()", output)


def test_cells_are_highlighted_folded_hidden_or_of_the_shell() -> None:
    text = shown("print(inspect.getsource(f))", stream("    def f():\n        pass\n\n"))
    assert "````{.python .printed}\ndef f():\n    pass\n````" in text
    assert '??? example "Solution"\n\n    ````python\n    x = 1\n    ````' in shown("x = 1", tag="solution")
    assert "x = 1" not in shown("x = 1", tag="hide-input")
    assert "````sh\ngpt --help\n````" in shown("%%sh\ngpt --help")


def test_reference_has_every_public_name_and_key_once() -> None:
    listed = [name for _, names in reference.NAMES.values() for name in names.split()]
    assert len(listed) == len(set(listed))
    assert set(gpt.__all__) - {"GPTError"} <= set(listed)  # that one is in the page of all errors
    schema = json.loads((ROOT / "configs" / "schema.json").read_text(encoding="utf-8"))
    text = reference.configuration_keys()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) == sum(len(section["properties"]) for section in schema["$defs"].values())
    assert '| `optim.name` | `adamw`, `muon` | `"adamw"` | muon: Muon for the matrices' in text
    assert "| `model.n_layer` | integer at least 1 at most 10000 | `6` | Blocks. |" in rows


def test_page_of_a_command_is_its_help_without_anything_of_this_machine() -> None:
    for name in COMMANDS:
        text = reference.command(name)
        assert text.startswith(f"# gpt {name}\n\n")
        assert f"\n\n```text\nusage: gpt {name}" in text
        assert "example:" in text
        assert not [place for place in (Path.home(), ROOT, Path.cwd()) if str(place) in text]
        assert max(map(len, text.partition("```text")[2].splitlines())) < 120
    text = reference.command("explain")
    assert "## gpt explain attention\n\nShow where" in text
    assert text.count("\n## ") == len(VIEWS)
