"""What every view that reads a text has in common: prompts, edits, files, forms and messages."""

import io
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from cli.conftest import Call
from gpt.checkpoint import Loaded
from gpt.cli.explain.attention import heat_map
from gpt.cli.explain.options import read_edits

VIEWS = ("attention", "lens")
pytestmark = pytest.mark.usefixtures("here")


def test_edits_are_factors_of_activations_or_heads() -> None:
    edits = read_edits(Namespace(edit=["blocks.0.attn.hook_z:1=0.5", "hook_embed=-2", "hook_embed=0"]))
    assert list(edits) == ["blocks.0.attn.hook_z", "hook_embed"]
    (one,), (whole, again) = edits.values()
    assert [edit.head for edit in (one, whole, again)] == [1, None, None]
    assert [edit.change(torch.tensor(3.0)).item() for edit in (one, whole, again)] == [1.5, -6.0, 0.0]
    assert again.change(torch.tensor([-torch.inf, 1.0])).tolist() == [0.0, 0.0], "not a product"
    assert read_edits(Namespace(edit=[])) == {}


@pytest.mark.parametrize("view", VIEWS)
def test_standard_input_is_a_prompt_and_the_source_is_the_checkpoint(
    run: Call, loaded: Loaded, view: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"It was")))
    read = run(f"explain {view} --prompt - --json").json
    assert read["labels"] == ["I", "t", "␣", "w", "a", "s"]
    assert read == run(f"explain {view} --prompt 'It was' --json --checkpoint runs/tiny").json
    assert Path(read["source"]).resolve() == loaded.folder.resolve()


@pytest.mark.parametrize("view", ["", "shapes", "flops", *VIEWS])
def test_help_ends_with_an_example(run: Call, view: str) -> None:
    *_, heading, example = run(f"explain {view} --help").out.rstrip().splitlines()
    assert heading == "example:"
    assert example.startswith(f"  gpt explain {view or 'attention'} --")


MATRIX = [[1.0, 0.0, 0.0], [0.3, 0.7, 0.0], [0.1, 0.45, 0.45]]
LABELS = ["a", "⏎", "U+200B"]


def test_a_matrix_is_shades() -> None:
    assert heat_map(MATRIX, LABELS).splitlines() == [
        "       a ⏎ ·",
        "     a ██",
        "     ⏎ ▒▒██",
        "U+200B ░░▓▓▓▓",
    ]
    for value, shade in {0.0: " ", 0.03: " ", 0.05: "░", 0.2: "▒", 0.5: "▓", 0.63: "▓", 0.65: "█", 1.0: "█"}.items():
        assert heat_map([[value]], ["a"]).splitlines()[1] == f"a {shade * 2}"
