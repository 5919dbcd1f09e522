"""`explain.py params` and `memory`, and overrides of what they look at."""

from pathlib import Path

import pytest
import torch

from cli.conftest import Call
from gpt.accounting.memory import inference_memory, training_memory
from gpt.checkpoint import Loaded
from gpt.config import OptimConfig
from gpt.config.sources import load_config
from gpt.device import Compute
from gpt.model import GPT
from gpt.training.optimizers import CombinedOptimizer, build_optimizer

# --- parameters ----------------------------------------------------------------------------------


def test_the_newest_run_is_counted(here: Path, loaded: Loaded, run: Call) -> None:
    summary = run("explain params --json").json
    assert summary["total"] == sum(parameter.numel() for parameter in loaded.model.parameters())
    assert [tensor["name"] for tensor in summary["tensors"]] == [name for name, _ in loaded.model.named_parameters()]
    assert run("explain params --json --checkpoint runs/tiny").json["total"] == summary["total"]


def test_a_published_model_and_a_configuration_are_counted(workplace: Path, run: Call) -> None:
    assert run("explain params --published llama-3-8b --json").json["total"] == 8_030_261_248
    sections = "data: {tokenizer: byte}\nmodel: {n_layer: 1, n_head: 1, n_embd: 8, block_size: 4}\n"
    (workplace / "byte.yaml").write_text(sections, encoding="utf-8")
    summary = run("explain params --config byte.yaml --json").json
    assert summary["total"] == 256 * 8 + 4 * 8 + 4 * 64 + 2 * 8 * 32 + 3 * 8
    assert summary["tied"] is True
    one = run("explain params --published gpt2 model.n_layer=1 model.bias=false --json").json
    assert one["total"] == (50257 + 1024) * 768 + 12 * 768**2 + 3 * 768


def test_the_table_says_what_is_tied_and_fits_a_terminal(run: Call) -> None:
    lines = run("explain params --published gpt2").out.splitlines()
    assert lines[0] == "gpt2, as published: 124,439,808 parameters"
    rows = [line.split() for line in lines]
    assert ["total", "124,439,808", "100.00", "%"] in rows
    assert ["head", "0", "(tied)"] in [row[:3] for row in rows]
    assert max(map(len, lines)) <= 100


# --- overrides -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "source"),
    [
        *((view, "--config tiny.yaml") for view in ("shapes", "params", "flops", "memory")),
        *(("params", source) for source in ("--published gpt2", "")),
    ],
)
def test_an_override_changes_the_model_that_is_looked_at(view: str, source: str, here: Path, run: Call) -> None:
    """Wherever it stands between the options."""
    first, *others = overrides = ["model.n_head=1", "model.n_embd=48", "model.vocab_size=65"]
    line = f"explain {view} {source} --json"
    before, changed = run(line).json, run(line, *overrides)
    assert run(f"explain {view} {first} {source} --json", *others) == changed
    after = changed.json
    assert after["source"].endswith(f", with {' '.join(overrides)}")
    assert {key for key in before if before[key] != after[key]} > {"source"}
    assert "section.key=value" in run(f"explain {view} --help").out


# --- memory --------------------------------------------------------------------------------------

MEMORY = "explain memory --device cpu"


def test_the_sizes_are_those_of_the_configuration_or_those_asked_for(workplace: Path, run: Call) -> None:
    config = load_config(Path("tiny.yaml"), []).config.model.model_copy(update={"vocab_size": 65})
    cpu = torch.device("cpu")

    def adamw(model: GPT) -> CombinedOptimizer:
        return build_optimizer(model, OptimConfig(), cpu)

    for options, batch, length, dtype in (
        ("", 4, 16, torch.float32),
        ("--batch 2 --seq 5 --dtype bfloat16", 2, 5, torch.bfloat16),
    ):
        found = run(f"{MEMORY} --config tiny.yaml {options} --json").json
        asked = [batch, length, str(dtype).removeprefix("torch."), "adamw"]
        assert [found[key] for key in ("batch", "seq", "dtype", "optimizer")] == asked
        assert found["training"] == vars(training_memory(config, batch, length, Compute(cpu, dtype), adamw))
        inference = inference_memory(config, batch, length, cpu)
        assert found["inference"] == {kind: vars(memory) for kind, memory in inference.items()}


def test_the_micro_batches_of_the_configuration_count(workplace: Path, run: Call) -> None:
    text = Path("tiny.yaml").read_text(encoding="utf-8")
    Path("more.yaml").write_text(text.replace("batch_size: 4", "batch_size: 4, grad_accum_steps: 3"), encoding="utf-8")
    one, three = (run(f"{MEMORY} --config {name}.yaml --json").json["training"] for name in ("tiny", "more"))
    assert three["peak"] > one["peak"]
    said = run(f"{MEMORY} --config more.yaml").out
    assert "Of 3 micro-batches, all but the first start with gradients allocated." in said


def test_the_tables_of_memory_fit_a_terminal(workplace: Path, run: Call) -> None:
    lines = run(f"{MEMORY} --config tiny.yaml --dtype float32").out.splitlines()
    assert "Training step of 4 × 16 tokens on cpu, float32, eager" in lines
    kinds = ["fp32", "bf16", "fp16"]
    assert [line.split()[0] for line in lines if line[:4] in kinds] == kinds
    assert any(line.startswith("peak of the step") and line.endswith("100.0 %") for line in lines)
    assert max(map(len, lines)) <= 100


def test_an_optimizer_can_be_asked_for(run: Call) -> None:
    small = f"{MEMORY} --published gpt2 model.n_layer=1 --batch 1 --seq 1 --json"
    adamw, muon = (run(f"{small} optim.name={name}").json for name in ("adamw", "muon"))
    assert muon["optimizer"] == "muon"
    matrices = 12 * 768**2  # of the block: one momentum instead of two moments
    assert adamw["training"]["optimizer"] - muon["training"]["optimizer"] == 4 * matrices + 4 * 6  # and their steps
