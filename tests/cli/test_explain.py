"""`gpt explain`: what each view prints, as a table and as JSON."""

import io
import json
import shlex
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from cli.conftest import Call
from gpt.checkpoint import Loaded, load_trained
from gpt.cli.explain.attention import heat_map
from gpt.cli.explain.lens import _tables
from gpt.cli.explain.options import read_edits
from gpt.config import OptimConfig
from gpt.config.sources import load_config
from gpt.extras.accounting.memory import inference_memory, training_memory
from gpt.extras.inspection.tracing.edits import zero
from gpt.extras.inspection.views.attention import ablate_heads, attention_patterns, summarize_head
from gpt.extras.inspection.views.lens import lens_view
from gpt.model import GPT
from gpt.model.flops import forward_flops
from gpt.system.device import Compute
from gpt.training.optimizers import build_optimizer

pytestmark = pytest.mark.usefixtures("here")
LABELS = ["I", "t", "␣", "w", "a", "s"]


@pytest.fixture
def loaded(trained: Path) -> Loaded:
    return load_trained(trained / "runs/tiny", trained / "runs", torch.device("cpu"))


@pytest.fixture
def ids(loaded: Loaded) -> torch.Tensor:
    return torch.tensor(loaded.tokenizer.encode("It was").tolist())


def test_edits_are_factors_of_activations_or_heads() -> None:
    edits = read_edits(Namespace(edit=["blocks.0.attn.hook_z:1=0.5", "hook_embed=-2", "hook_embed=0"]))
    assert list(edits) == ["blocks.0.attn.hook_z", "hook_embed"]
    (one,), (whole, again) = edits.values()
    assert [edit.head for edit in (one, whole, again)] == [1, None, None]
    assert [edit.change(torch.tensor(3.0)).item() for edit in (one, whole, again)] == [1.5, -6.0, 0.0]
    assert again.change(torch.tensor([-torch.inf, 1.0])).tolist() == [0.0, 0.0], "not a product"
    assert read_edits(Namespace(edit=[])) == {}


@pytest.mark.parametrize("view", ["attention", "lens"])
def test_standard_input_is_a_prompt_and_the_source_is_the_checkpoint(
    run: Call, loaded: Loaded, view: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"It was")))
    read = run(f"explain {view} --prompt - --json").json
    assert read["labels"] == LABELS
    assert read == run(f"explain {view} --prompt 'It was' --json --checkpoint runs/tiny").json
    assert Path(read["source"]).resolve() == loaded.folder.resolve()


@pytest.mark.parametrize("view", ["", "shapes", "params", "flops", "memory", "attention", "lens"])
def test_help_ends_with_an_example(run: Call, view: str) -> None:
    *_, heading, example = run(f"explain {view} --help").out.rstrip().splitlines()
    assert heading == "example:"
    assert example.startswith(f"  gpt explain {view or 'attention'} --")


@pytest.mark.parametrize(
    ("view", "source"),
    [
        *((view, "--config tiny.yaml") for view in ("shapes", "flops", "memory")),
        *(("params", source) for source in ("--published gpt2", "")),
    ],
)
def test_override_changes_the_model_that_is_looked_at(view: str, source: str, run: Call) -> None:
    """Wherever it stands between the options."""
    first, *others = overrides = ["model.n_head=1", "model.n_embd=48", "model.vocab_size=65"]
    line = f"explain {view} {source} --json"
    before, changed = run(line).json, run(line, *overrides)
    assert run(f"explain {view} {first} {source} --json", *others) == changed
    after = changed.json
    assert after["source"].endswith(f", with {' '.join(overrides)}")
    assert {key for key in before if before[key] != after[key]} > {"source"}


# --- attention -----------------------------------------------------------------------------------

ATTENTION = "explain attention --prompt 'It was'"


def rows_of(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines() if line.split()[:1] == ["0"]]


@pytest.mark.parametrize("chosen", [[], [0], [0, 1]], ids=str)
def test_attention_has_weights_and_figures_of_the_heads_that_are_shown(
    run: Call, loaded: Loaded, ids: torch.Tensor, chosen: list[int]
) -> None:
    options = [part for pair in zip(("--layer", "--head"), map(str, chosen), strict=False) for part in pair]
    found = run(f"{ATTENTION} --json", *options).json
    patterns, changes = attention_patterns(loaded.model, ids), ablate_heads(loaded.model, ids)
    assert (found["labels"], [found["layer"], found["head"]]) == (LABELS, [*chosen, None, None][:2])
    torch.testing.assert_close(torch.tensor(found["weights"]), patterns[tuple(chosen)], rtol=0, atol=1e-6)
    shown, cells = chosen[1:] or [0, 1], list[list[str]]()
    assert [(figures["layer"], figures["head"]) for figures in found["heads"]] == [(0, head) for head in shown]
    for figures, head in zip(found["heads"], shown, strict=True):
        summary = vars(summarize_head(patterns[0, head]))
        assert {name: figures[name] for name in summary} == pytest.approx(summary)
        assert figures["without_it"] == pytest.approx(float(changes[0, head]), abs=1e-6)
        cells.append(["0", str(head), *(f"{value:.3f}" for value in summary.values()), f"{changes[0, head]:+.4f}"])
    out = run(ATTENTION, *options).out
    if len(chosen) < 2:
        assert rows_of(out) == cells
    else:
        heading, _, *lines = out.splitlines()
        assert heading.startswith("layer 0, head 1: rows: queries; columns: keys")
        assert [line[0] for line in lines] == LABELS
        assert "██" in lines[0]  # the first token looks at itself


def test_attention_of_an_edited_model_and_of_one_token(run: Call, loaded: Loaded, ids: torch.Tensor) -> None:
    found = run(f"{ATTENTION} --json --edit blocks.0.attn.hook_q:1=0").json
    edits = {"blocks.0.attn.hook_q": zero(1)}
    weights, changes = (look(loaded.model, ids, edits) for look in (attention_patterns, ablate_heads))
    torch.testing.assert_close(torch.tensor(found["weights"]), weights, rtol=0, atol=1e-6)
    assert found["weights"][0][1][-1] == pytest.approx([1 / 6] * 6)  # no query, no preference
    assert [figures["without_it"] for figures in found["heads"]] == pytest.approx(changes[0].tolist())
    assert [row[-1] for row in rows_of(run("explain attention --prompt I").out)] == ["-", "-"]  # no loss to change
    heads = run("explain attention --prompt I --json").json["heads"]
    assert [figures["without_it"] for figures in heads] == [None, None]


def test_matrix_is_shades() -> None:
    matrix = [[1.0, 0.0, 0.0], [0.3, 0.7, 0.0], [0.1, 0.45, 0.45]]
    assert heat_map(matrix, ["a", "⏎", "U+200B"]).splitlines() == [
        "       a ⏎ ·",
        "     a ██",
        "     ⏎ ▒▒██",
        "U+200B ░░▓▓▓▓",
    ]
    for value, shade in {0.0: " ", 0.03: " ", 0.05: "░", 0.2: "▒", 0.5: "▓", 0.63: "▓", 0.65: "█", 1.0: "█"}.items():
        assert heat_map([[value]], ["a"]).splitlines()[1] == f"a {shade * 2}"


# --- lens ----------------------------------------------------------------------------------------

LENS = "explain lens --prompt 'It was'"


def test_lens_has_a_row_for_every_stream_the_last_on_top(run: Call, loaded: Loaded, ids: torch.Tensor) -> None:
    def view_of(count: int = 5, **options: Any) -> dict[str, Any]:
        return json.loads(json.dumps(lens_view(loaded.model, loaded.tokenizer, ids, count, **options)))

    found = run(f"{LENS} --json --top 3").json
    assert found.pop("source")
    assert found == view_of(3)
    assert len(found["top"][1][5]) == 3
    edited = run(f"{LENS} --json --edit blocks.0.attn.hook_z:1=0").json["top"]
    assert edited == view_of(edits={"blocks.0.attn.hook_z": zero(1)})["top"] != view_of()["top"]
    out = run(LENS).out.splitlines()
    lines = dict(line.split("  ", 1) for line in out if line.startswith(("text", "actual", "after")))
    assert [name for name in lines if name.startswith("after")] == ["after block 0", "after embeddings"]
    texts = ["It␣was", "t␣was", *("".join(cell[0][0] for cell in row) for row in reversed(view_of()["top"]))]
    assert [line.strip() for line in lines.values()] == texts
    for position, came in ((0, f"{found['next_probability'][1][0]:.3f}"), (5, "-")):
        out = run(f"{LENS} --position {position} --top 2").out
        line = next(line for line in out.splitlines() if line.startswith("after block 0"))
        cells = [f"{token} {probability:.3f}" for token, probability in found["top"][1][position][:2]]
        assert line.split() == " ".join(["after block 0", *cells, came]).split()


def test_long_tokens_have_columns_of_their_own_six_in_a_table() -> None:
    words = [f"␣word{index}" for index in range(7)]
    top = [[("␣an", 0.5)], [("␣extraordinary", 0.5)], *([("␣x", 0.5)] for _ in range(5))]
    view = {"labels": words, "rows": ["embeddings"], "top": [top], "next": [*words[1:], None]}
    first, second = _tables(view)
    assert first.header == ("", "0", "1", "2", "3", "4", "5")
    assert first.rows[0] == ("text", *words[:6])
    assert first.rows[2][:3] == ("after embeddings", "␣an", "␣extraord…")
    assert second.header == ("", "6")
    assert second.rows == [("text", "␣word6"), ("actual next", " "), ("after embeddings", "␣x")]
    top = [[[("U+0000", 0.5)], [("b", 0.5)]]]  # names of characters
    (table,) = _tables({"labels": ["a", "CR"], "rows": ["embeddings"], "top": top, "next": ["CR", None]})
    assert [row[1] for row in table.rows] == ["a·", "· ", "·b"]
    assert "· is a token whose label has more than one character" in table.note


# --- shapes --------------------------------------------------------------------------------------

REFERENCE = Path(__file__).resolve().parents[2] / "configs" / "reference_shapes.yaml"
SHAPES = f"explain shapes --config {shlex.quote(str(REFERENCE))}"


def test_shapes_are_traced_without_weights(run: Call) -> None:
    found = run(f"{SHAPES} --json").json
    assert (found["source"], found["batch"], found["seq"]) == (str(REFERENCE), 1, 7)
    rows = {row["name"]: row for row in found["forward_pass"]}
    assert (next(iter(rows)), list(rows)[-1]) == ("idx", "lm_head.linear")
    row = rows["h.1.attn.c_q.linear"]
    expected = {"symbols": "B T C", "shape": [1, 7, 64], "dtype": "float32", "nbytes": 1792, "flops": 57_344}
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


def test_table_of_shapes_has_the_specification_in_it_and_like_blocks_once(run: Call, tmp_path: Path) -> None:
    out = run(SHAPES).out
    rows = {line.split("  ")[0].strip(): line.split() for line in out.splitlines()}
    for name, cells in {
        "idx": ["1×7", "int64", "56"],
        "wte.embedding": ["1×7×64", "float32", "1,792", "weight", "20000×64"],
        "attn.view": ["1×7×4×16", "float32", "(1,792)"],  # a view of another tensor
        "attn.core.matmul": ["1×4×7×7", "float32", "784", "6,272"],
        "mlp.c_fc.linear": ["1×7×256", "weight.T", "64×256,", "bias", "256"],
        "lm_head.linear": ["1×7×20000", "17,920,000", "weight.T", "64×20000"],
    }.items():
        assert set(cells) <= set(rows[name]), name
    model = load_config(REFERENCE).config.model
    assert f"{forward_flops(model, 1, 7):,} FLOPs in matmuls" in out
    assert f"{sum(parameter.numel() for parameter in GPT(model).parameters()):,} parameters read" in out
    assert out.count("attn.core.softmax") == 1
    assert "Block 1: same as block 0" in out
    for tokenizer, words in (("char", "vocabulary of 65, assumed"), ("byte", "vocabulary of 256, of bytes")):
        sections = f"data: {{tokenizer: {tokenizer}}}\nmodel: {{n_layer: 1, n_head: 2, n_embd: 8}}\n"
        (tmp_path / "open.yaml").write_text(sections, encoding="utf-8")
        assert words in run(f"explain shapes --config {tmp_path}/open.yaml").out.splitlines()[0]


# --- parameters, FLOPs and memory ----------------------------------------------------------------


def test_parameters_of_runs_and_published_models_are_counted(run: Call, loaded: Loaded) -> None:
    summary = run("explain params --json").json
    assert summary["total"] == sum(parameter.numel() for parameter in loaded.model.parameters())
    assert [tensor["name"] for tensor in summary["tensors"]] == [name for name, _ in loaded.model.named_parameters()]
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
    """Of a training step of 3 x 100 tokens; and of 100 tokens after 100: 32 blocks attend over 4096 numbers."""
    found = run(f"{LLAMA} --batch 3 --seq 100 --prompt-tokens 100 --new-tokens 100 --json").json
    blocks, head, attention = 32 * (4 * 4096**2 + 3 * 4096 * 11008), 4096 * 32000, 4 * 4096 * 32
    parts = {"linear_layers": 2 * 300 * blocks, "attention": 3 * 100 * 100 * attention, "head": 2 * 300 * head}
    assert found["forward_parts"] == parts
    forward = sum(parts.values())
    assert (found["forward"], found["backward"], found["training_step"]) == (forward, 2 * forward, 3 * forward)
    generation, weights = found["generation"], 2 * (blocks + head)
    assert (generation["naive_positions"], generation["cached_positions"]) == (15_050, 200)
    assert generation["prefill"] == weights * 100 + attention * 100**2
    assert generation["naive"] == weights * 15_050 + attention * sum(length**2 for length in range(101, 201))
    assert generation["cached"] == generation["prefill"] + weights * 100 + attention * sum(range(101, 201))
    assert [step["step"] for step in generation["steps"]] == [1, 2, 4, 8, 16, 32, 64, 100]
    assert generation["ratio"] == pytest.approx(75, abs=1)


def test_flops_of_a_run_have_its_sizes(run: Call) -> None:
    for options, tokens in (("", (8, 8)), ("--new-tokens 12", (2, 12)), ("--prompt-tokens 3", (3, 13))):
        found = run(f"explain flops --json {options}").json
        assert (found["batch"], found["seq"]) == (4, 16)
        assert (found["generation"]["prompt_tokens"], found["generation"]["new_tokens"]) == tokens
    long = run("explain flops model.block_size=1000000000 --json").json
    assert long["generation"]["new_tokens"] == 500_000_000  # counted at once
    line = "explain flops --config tiny.yaml model.block_size=1"  # which leaves no room
    assert run(f"{line} --json").json["generation"] is None
    out = run(line).out
    assert "Training" in out
    assert "Generating" not in out


def test_tables_of_flops_show_both_ways_and_fit_a_terminal(run: Call) -> None:
    out = run(f"{LLAMA} --prompt-tokens 50 --new-tokens 100").out
    rows = [line.split() for line in out.splitlines()]
    assert ["1", "51", "675,285,565,440", "13,240,893,440", "51.0"] in rows
    assert ["100", "150", "1,993,919,692,800", "13,292,797,952", "150.0"] in rows
    assert "Positions computed: 10,050 without a cache, 150 with one: 67.0 to 1." in out
    assert max(map(len, out.splitlines())) <= 100


MEMORY = "explain memory --device cpu"


@pytest.mark.slow
def test_memory_is_that_of_the_sizes_asked_for(run: Call) -> None:
    config, cpu = load_config(Path("tiny.yaml"), ["model.vocab_size=65"]).config.model, torch.device("cpu")
    for options, batch, length, dtype in (
        ("", 4, 16, torch.float32),
        ("--batch 2 --seq 5 --dtype bfloat16", 2, 5, torch.bfloat16),
    ):
        found = run(f"{MEMORY} --config tiny.yaml {options} --json").json
        asked = [batch, length, str(dtype).removeprefix("torch."), "adamw"]
        assert [found[key] for key in ("batch", "seq", "dtype", "optimizer")] == asked
        compute = Compute(cpu, dtype)
        training = training_memory(
            config, batch, length, compute, lambda model: build_optimizer(model, OptimConfig(), cpu)
        )
        assert found["training"] == vars(training)
        inference = inference_memory(config, batch, length, cpu)
        assert found["inference"] == {kind: vars(memory) for kind, memory in inference.items()}


@pytest.mark.slow
def test_memory_depends_on_micro_batches_and_the_optimizer(run: Call) -> None:
    one, three = (f"{MEMORY} --config tiny.yaml train.grad_accum_steps={count}" for count in (1, 3))
    peaks = [run(f"{line} --json").json["training"]["peak"] for line in (one, three)]
    assert peaks[1] > peaks[0]
    assert "Of 3 micro-batches, all but the first start with gradients allocated." in run(three).out
    adamw, muon = (run(f"{one} optim.name={name} --json").json for name in ("adamw", "muon"))
    assert muon["optimizer"] == "muon"
    matrices = 12 * 16**2  # of the block: one momentum instead of two moments
    assert adamw["training"]["optimizer"] - muon["training"]["optimizer"] == 4 * matrices + 4 * 6  # and their steps


def test_tables_of_memory_fit_a_terminal(run: Call) -> None:
    lines = run(f"{MEMORY} --config tiny.yaml --dtype float32").out.splitlines()
    assert "Training step of 4 × 16 tokens on cpu, float32, eager" in lines
    kinds = ["fp32", "bf16", "fp16"]
    assert [line.split()[0] for line in lines if line[:4] in kinds] == kinds
    assert any(line.startswith("peak of the step") and line.endswith("100.0 %") for line in lines)
    assert max(map(len, lines)) <= 100
