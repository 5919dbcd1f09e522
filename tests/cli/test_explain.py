"""`gpt explain`: what each view prints, as a table and as JSON."""

import json
import re
import shlex
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from cli.conftest import Call
from gpt.checkpoint import Loaded, load_trained
from gpt.cli.explain.attention import SHADES, heat_map
from gpt.cli.explain.options import read_edits
from gpt.cli.tables import TINTS, shade_level
from gpt.extras.inspection.tracing.edits import zero
from gpt.extras.inspection.views.attention import ablate_heads, attention_patterns, summarize_head
from gpt.extras.inspection.views.lens import lens_view
from gpt.extras.inspection.views.surprisal import surprisal

pytestmark = pytest.mark.usefixtures("here")
LABELS = ["I", "t", "␣", "w", "a", "s"]


@pytest.fixture
def loaded(trained: Path) -> Loaded:
    return load_trained(trained / "runs/tiny", trained / "runs", torch.device("cpu"))


@pytest.fixture
def ids(loaded: Loaded) -> torch.Tensor:
    return torch.tensor(loaded.tokenizer.encode("It was").tolist())


def test_edits_are_factors_of_activations_or_heads() -> None:
    edits = read_edits(
        Namespace(edit=["blocks.0.attn.hook_z:1=0.5", "hook_embed=-2", "hook_embed=0"])
    )
    assert list(edits) == ["blocks.0.attn.hook_z", "hook_embed"]
    (one,), (whole, again) = edits.values()
    assert [edit.head for edit in (one, whole, again)] == [1, None, None]
    assert [edit.change(torch.tensor(3.0)).item() for edit in (one, whole, again)] == [
        1.5,
        -6.0,
        0.0,
    ]
    assert again.change(torch.tensor([-torch.inf, 1.0])).tolist() == [0.0, 0.0], "not a product"
    assert read_edits(Namespace(edit=[])) == {}


ATTENTION = "explain attention --prompt 'It was'"


def rows_of(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines() if line.split()[:1] == ["0"]]


@pytest.mark.parametrize("chosen", [[], [0], [0, 1]], ids=str)
def test_attention_has_weights_and_figures_of_the_shown_heads(
    run: Call, loaded: Loaded, ids: torch.Tensor, chosen: list[int]
) -> None:
    options = [
        part for pair in zip(("--layer", "--head"), map(str, chosen), strict=False) for part in pair
    ]
    found = run(f"{ATTENTION} --json", *options).json
    patterns = attention_patterns(loaded.model, ids)
    changes = ablate_heads(loaded.model, ids)
    assert (found["labels"], [found["layer"], found["head"]]) == (LABELS, [*chosen, None, None][:2])
    torch.testing.assert_close(
        torch.tensor(found["weights"]), patterns[tuple(chosen)], rtol=0, atol=1e-6
    )
    shown = chosen[1:] or [0, 1]
    cells: list[list[str]] = []
    assert [(figures["layer"], figures["head"]) for figures in found["heads"]] == [
        (0, head) for head in shown
    ]
    for figures, head in zip(found["heads"], shown, strict=True):
        summary = vars(summarize_head(patterns[0, head]))
        assert {name: figures[name] for name in summary} == pytest.approx(summary)
        assert figures["without_it"] == pytest.approx(float(changes[0, head]), abs=1e-6)
        cells.append(
            [
                "0",
                str(head),
                *(f"{value:.3f}" for value in summary.values()),
                f"{changes[0, head]:+.4f}",
            ]
        )
    out = run(ATTENTION, *options).out
    if len(chosen) < 2:
        assert rows_of(out) == cells
    else:
        heading, _, *lines = out.splitlines()
        assert heading.startswith("layer 0, head 1: rows: queries; columns: keys")
        assert [line[0] for line in lines] == LABELS
        assert "██" in lines[0]  # the first token looks at itself


LENS = "explain lens --prompt 'It was'"


def test_lens_has_a_row_for_every_stream_in_the_order_of_the_pages(
    run: Call, loaded: Loaded, ids: torch.Tensor
) -> None:
    def view_of(count: int = 5, **options: Any) -> dict[str, Any]:
        return json.loads(
            json.dumps(lens_view(loaded.model, loaded.tokenizer, ids, count, **options))
        )

    found = run(f"{LENS} --json --top 3").json
    assert found.pop("source")
    assert found == view_of(3)
    assert len(found["top"][1][5]) == 3
    edited = run(f"{LENS} --json --edit blocks.0.attn.hook_z:1=0").json["top"]
    assert edited == view_of(edits={"blocks.0.attn.hook_z": zero(1)})["top"] != view_of()["top"]
    out = run(LENS).out.splitlines()
    lines = dict(
        line.split("  ", 1) for line in out if line.startswith(("text", "actual", "after"))
    )
    assert [name for name in lines if name.startswith("after")] == [
        "after embeddings",
        "after block 0",
    ]
    texts = [
        "It␣was",
        "t␣was",
        *("".join(cell[0][0] for cell in row) for row in view_of()["top"]),
    ]
    assert [line.strip() for line in lines.values()] == texts
    for position, came in ((0, f"{found['next_probability'][1][0]:.3f}"), (5, "-")):
        out = run(f"{LENS} --position {position} --top 2").out
        line = next(line for line in out.splitlines() if line.startswith("after block 0"))
        cells = [
            f"{token} {probability:.3f}" for token, probability in found["top"][1][position][:2]
        ]
        assert line.split() == " ".join(["after block 0", *cells, came]).split()


REFERENCE = Path(__file__).resolve().parents[2] / "configs" / "reference_shapes.yaml"
SHAPES = f"explain shapes --config {shlex.quote(str(REFERENCE))}"


def test_shapes_are_traced_without_weights(run: Call) -> None:
    found = run(f"{SHAPES} --json").json
    assert (found["source"], found["batch"], found["seq"]) == (str(REFERENCE), 1, 7)
    rows = {row["name"]: row for row in found["forward_pass"]}
    assert (next(iter(rows)), list(rows)[-1]) == ("idx", "lm_head.linear")
    row = rows["h.1.attn.c_q.linear"]
    expected = {
        "symbols": "B T C",
        "shape": [1, 7, 64],
        "dtype": "float32",
        "nbytes": 1792,
        "flops": 57_344,
    }
    assert row.items() >= {**expected, "layer": 1}.items()
    assert rows["h.0.mlp.c_fc.linear"]["parameters"] == [
        {"name": "h.0.mlp.c_fc.weight.T", "symbols": "C F", "shape": [64, 256]},
        {"name": "h.0.mlp.c_fc.bias", "symbols": "F", "shape": [256]},
    ]
    for source, size in (
        ("--published gpt2 --seq 3", [1, 3]),
        ("--config tiny.yaml --batch 3", [3, 7]),
        ("--checkpoint runs/tiny --batch 2 --seq 16", [2, 16]),
    ):
        found = run(f"explain shapes {source} --json").json
        assert [found["batch"], found["seq"]] == found["forward_pass"][0]["shape"] == size


def test_parameters_of_runs_and_published_models_are_counted(run: Call, loaded: Loaded) -> None:
    summary = run("explain params --json").json
    assert summary["total"] == sum(parameter.numel() for parameter in loaded.model.parameters())
    assert [tensor["name"] for tensor in summary["tensors"]] == [
        name for name, _ in loaded.model.named_parameters()
    ]
    one = run("explain params --published gpt2 model.n_layer=1 model.bias=false --json").json
    assert (one["total"], one["tied"]) == ((50257 + 1024) * 768 + 12 * 768**2 + 3 * 768, True)
    lines = run("explain params --published gpt2").out.splitlines()
    assert lines[0] == "gpt2, as published: 124,439,808 parameters"
    rows = [line.split() for line in lines]
    assert ["total", "124,439,808", "100.00", "%"] in rows
    assert ["head", "0", "(tied)"] in [row[:3] for row in rows]
    assert max(map(len, lines)) <= 100


LLAMA = "explain flops --published llama-2-7b"


def test_flops_are_those_by_hand(run: Call) -> None:
    """Of a training step of 3 x 100 tokens; and of 100 tokens after 100: 32 blocks attend over 4096
    numbers.
    """
    found = run(f"{LLAMA} --batch 3 --seq 100 --prompt-tokens 100 --new-tokens 100 --json").json
    blocks = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    head = 4096 * 32000
    attention = 4 * 4096 * 32
    parts = {
        "linear_layers": 2 * 300 * blocks,
        "attention": 3 * 100 * 100 * attention,
        "head": 2 * 300 * head,
    }
    assert found["forward_parts"] == parts
    forward = sum(parts.values())
    assert (found["forward"], found["backward"], found["training_step"]) == (
        forward,
        2 * forward,
        3 * forward,
    )
    generation = found["generation"]
    weights = 2 * (blocks + head)
    assert (generation["naive_positions"], generation["cached_positions"]) == (15_050, 200)
    assert generation["prefill"] == weights * 100 + attention * 100**2
    assert generation["naive"] == weights * 15_050 + attention * sum(
        length**2 for length in range(101, 201)
    )
    assert generation["cached"] == generation["prefill"] + weights * 100 + attention * sum(
        range(101, 201)
    )
    assert [step["step"] for step in generation["steps"]] == [1, 2, 4, 8, 16, 32, 64, 100]
    assert generation["ratio"] == pytest.approx(75, abs=1)


def test_flops_of_a_whole_training_count_its_shorter_sequences(run: Call) -> None:
    command = "explain flops --config shakespeare_modern"
    found = run(f"{command} --json").json
    whole = found["whole_training"]
    assert whole["steps"] == 1720
    at_full_length = whole["steps"] * found["training_step"]
    assert 0.8 < whole["flops"] / at_full_length < 0.81  # 128 and 256 of 512 tokens in 80%
    assert "all steps of 3,072 tokens, 34 TFLOP" in run(command).out
    assert "whole_training" not in run(f"{LLAMA} --json").json


COLOR = re.compile("\033\\[[0-9;]*m")
"""A code that changes the colors of a terminal."""
VIEWS_OF_A_TEXT = (
    ATTENTION,
    f"{ATTENTION} --layer 0 --head 1",
    LENS,
    f"{LENS} --position 2",
)
MATRIX = f"{ATTENTION} --layer 0 --head 1"


def show_in_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """Let standard output be a terminal with colors."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


def shown_words(text: str) -> list[str]:
    """Return the words without the rules below headers, in any order."""
    return sorted(word for word in COLOR.sub("", text).split() if word.strip("-"))


@pytest.mark.parametrize("view", [*VIEWS_OF_A_TEXT, SHAPES, "explain params", "runs"])
@pytest.mark.parametrize("width", [40, 80, 200])
def test_tables_of_a_terminal_fit_its_width_and_have_all_words(
    run: Call, monkeypatch: pytest.MonkeyPatch, view: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    piped = run(view).out
    show_in_terminal(monkeypatch, width)
    monkeypatch.setenv("NO_COLOR", "1")
    shown = run(view).out
    for line in shown.splitlines():
        assert len(line) <= width or " " not in line.strip()  # a path stays whole
    assert shown_words(shown) == shown_words(piped)
    if max(map(len, piped.splitlines())) <= width:
        assert shown == piped


def test_text_wider_than_a_terminal_continues_below(
    run: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    show_in_terminal(monkeypatch, width=10)
    monkeypatch.setenv("NO_COLOR", "1")
    *_, first, second = run(MATRIX).out.split("\n\n")
    assert max(map(len, first.splitlines()[-6:])) <= 10
    assert [line[:2].rstrip() for line in first.splitlines()[-6:]] == LABELS
    assert second.splitlines()[0] == "  a s"
    assert [line[0] for line in second.splitlines()[1:]] == LABELS[4:]
    monkeypatch.setenv("COLUMNS", "22")  # 16 of them name the last row
    starts = [line for line in run(LENS).out.splitlines() if line.startswith("from position")]
    assert starts == ["from position 0", "from position 4"]


def test_columns_of_words_fit_a_terminal(
    workplace: Path, run: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("train --config tiny.yaml data.tokenizer=word data.word_vocab_size=20 train.max_steps=3")
    show_in_terminal(monkeypatch, width=40)
    monkeypatch.setattr("gpt.cli.tables.TINTS", range(1, 101))
    out = run("explain lens --prompt 'the keeper the keeper'").out
    headers = [line.split() for line in out.splitlines() if line.startswith(" ")]
    assert headers == [["0", "1"], ["2", "3"], ["4", "5"], ["6"]]
    lines = [line for line in out.splitlines() if line.startswith("after")]
    assert all(COLOR.search(line) for line in lines)
    assert max(len(COLOR.sub("", line)) for line in lines) <= 40


@pytest.mark.parametrize("view", VIEWS_OF_A_TEXT)
def test_only_a_terminal_with_colors_has_tints(
    run: Call, monkeypatch: pytest.MonkeyPatch, view: str
) -> None:
    piped = run(view).out
    assert not COLOR.search(piped)
    show_in_terminal(monkeypatch, width=200)
    # Many tints, since a model that is hardly trained finds no token likely.
    tints = range(1, 101)
    monkeypatch.setattr("gpt.cli.tables.TINTS", tints)
    tinted = run(view).out
    backgrounds = {int(code) for code in re.findall(r"48;5;(\d+)m", tinted)}
    assert backgrounds
    assert backgrounds <= set(tints)
    plain = COLOR.sub("", tinted)
    for shade in SHADES:  # a heat map has tints in place of shades
        piped = piped.replace(shade, " ")
    assert [line.rstrip() for line in plain.splitlines()] == [
        line.rstrip() for line in piped.splitlines()
    ]
    monkeypatch.setenv("TERM", "dumb")
    assert not COLOR.search(run(view).out)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not COLOR.search(run(view).out)
    assert not COLOR.search(run(f"{view} --json").out)


def test_larger_weights_have_darker_tints(run: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    show_in_terminal(monkeypatch, width=80)
    first_query = run(MATRIX).out.splitlines()[2]  # it has one key, so that its weight is 1
    assert f"48;5;{TINTS[-1]}m" in first_query
    levels = [shade_level(strength, 5) for strength in (0, 0.19, 0.21, 0.5, 0.7, 0.9, 1)]
    assert levels == [0, 0, 1, 2, 3, 4, 4]


def test_small_weights_have_a_shade_in_a_matrix() -> None:
    matrix = [[0.03, 0.0, 0.0], [0.05, 0.17, 0.0], [0.4, 0.7, 1.0]]
    lines = heat_map(matrix, ["a", "b", "c"]).splitlines()
    assert lines == ["  a b c", "a   ", "b ░░▒▒", "c ▓▓████"]


def test_edit_that_makes_weights_negative_has_a_matrix(run: Call) -> None:
    out = run(f"{MATRIX} --edit blocks.0.attn.hook_pattern=-1").out
    assert out.splitlines()[2].rstrip() == "I"


def test_ablation_is_in_bits_like_the_surprisal_of_the_pages(
    run: Call, loaded: Loaded, ids: torch.Tensor
) -> None:
    without = {"blocks.0.attn.hook_z": zero(1)}
    change = (
        surprisal(loaded.model, ids, without).mean_bits - surprisal(loaded.model, ids).mean_bits
    )
    figures = run(f"{MATRIX} --json").json["heads"][0]
    assert figures["without_it"] == pytest.approx(change, abs=1e-5)
    assert "in bits per token" in run(ATTENTION).out
