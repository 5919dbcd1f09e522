"""Pages of the site: their place, links and formulas, executed chapters, and what the program fills
in.
"""

import json
import re
from pathlib import Path

import pytest

import gpt
from docs.site import build, reference
from docs.site.chapters import CHAPTERS, ROOT
from docs.site.lessons import LESSONS
from docs.site.links import adapt
from gpt.cli.commands import COMMANDS
from gpt.cli.explain import VIEWS


def test_every_document_has_its_place() -> None:
    listed = re.findall(r'"([^"]+\.md)"', json.dumps(build.navigation()))
    assert len(listed) == len(set(listed))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} <= set(listed)
    assert {f"book/{path.name}" for path in CHAPTERS} <= set(listed)
    assert {f"book/{path.stem}.md" for path in LESSONS} <= set(listed)


@pytest.mark.parametrize(
    ("path", "link", "adapted", "made"),
    [
        ("docs/data.md", "training.md#model", "training.md#model", set()),
        ("docs/data.md", "../README.md#results", "index.md#results", {"README.md"}),
        (
            "docs/data.md",
            "../gpt/system/files.py",
            "source/gpt/system/files.py.md",
            {"gpt/system/files.py"},
        ),
        (
            "docs/book/1_x.md",
            "../../gpt/system/files.py",
            "../source/gpt/system/files.py.md",
            {"gpt/system/files.py"},
        ),
        ("docs/book/1_x.md", "../data.md", "../data.md", set()),
        ("docs/data.md", "../notebooks/1_x.ipynb", "book/1_x.ipynb", set()),
        ("docs/data.md", "../notebooks/names.ipynb", "book/names.md", set()),
        ("README.md", "docs/data.md", "data.md", set()),
        ("benchmarks/LOG.md", "../docs/attention.png", "../../attention.png", set()),
        (
            "docs/data.md",
            "https://arxiv.org/abs/1706.03762",
            "https://arxiv.org/abs/1706.03762",
            set(),
        ),
        ("docs/data.md", "#here", "#here", set()),
    ],
)
def test_links_lead_to_where_the_site_has_a_file(
    path: str, link: str, adapted: str, made: set[str]
) -> None:
    assert adapt(f"See [it]({link}).", path) == (f"See [it]({adapted}).", made)


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


def test_page_of_a_command_is_its_help_without_local_paths() -> None:
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
