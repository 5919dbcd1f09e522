"""Pages that the program fills in: names, commands, keys."""

import json
from pathlib import Path

import pytest

import gpt
from docs.site import reference
from docs.site.chapters import ROOT
from gpt.cli.commands import COMMANDS
from gpt.cli.explain import VIEWS


def test_every_public_name_is_in_the_reference_once() -> None:
    listed = [name for _, names in reference.NAMES.values() for name in names.split()]
    assert len(listed) == len(set(listed))
    assert set(gpt.__all__) - {"GPTError"} <= set(listed)  # that one is in the page of all errors


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_of_a_command_is_its_help_without_anything_of_this_machine(name: str) -> None:
    text = reference.command(name)
    assert text.startswith(f"# gpt {name}\n\n")
    assert f"\n\n```text\nusage: gpt {name}" in text
    assert "example:" in text
    assert not [place for place in (Path.home(), ROOT, Path.cwd()) if str(place) in text]
    assert max(map(len, text.partition("```text")[2].splitlines())) < 120


def test_the_page_of_explain_has_every_view() -> None:
    text = reference.command("explain")
    assert "## gpt explain attention\n\nShow where" in text
    assert text.count("\n## ") == len(VIEWS)


def test_every_key_has_its_row() -> None:
    schema = json.loads((ROOT / "configs" / "schema.json").read_text(encoding="utf-8"))
    text = reference.configuration_keys()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) == sum(len(section["properties"]) for section in schema["$defs"].values())
    assert '| `optim.name` | `adamw`, `muon` | `"adamw"` | muon: Muon for the matrices' in text
    assert "| `model.n_layer` | integer at least 1 at most 10000 | `6` | Blocks. |" in rows
