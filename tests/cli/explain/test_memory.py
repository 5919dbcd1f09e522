import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt.accounting.memory import inference_memory, training_memory
from gpt.cli import explain
from gpt.config import OptimConfig, load_config
from gpt.device import Compute
from gpt.model import GPT
from gpt.training.optimizers import CombinedOptimizer, build_optimizer


def summary_of(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert explain.main(["memory", *options, "--device", "cpu", "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_the_sizes_are_those_of_the_configuration_or_those_asked_for(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_config(Path("tiny.yaml"), []).config.model.model_copy(update={"vocab_size": 65})
    given, asked = (
        summary_of(capsys, "--config", "tiny.yaml", *options)
        for options in ([], ["--batch", "2", "--seq", "5", "--dtype", "bfloat16"])
    )
    assert (given["batch"], given["seq"], given["dtype"], given["optimizer"]) == (4, 16, "float32", "adamw")
    cpu = torch.device("cpu")

    def adamw(model: GPT) -> CombinedOptimizer:
        return build_optimizer(model, OptimConfig(), cpu)

    for summary, batch, length, dtype in ((given, 4, 16, torch.float32), (asked, 2, 5, torch.bfloat16)):
        predicted = training_memory(config, batch, length, Compute(cpu, dtype), adamw)
        assert summary["training"] == vars(predicted)
        inference = inference_memory(config, batch, length, cpu)
        assert summary["inference"] == {kind: vars(memory) for kind, memory in inference.items()}


def test_the_micro_batches_of_the_configuration_count(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = Path("tiny.yaml").read_text(encoding="utf-8")
    Path("more.yaml").write_text(text.replace("batch_size: 4", "batch_size: 4, grad_accum_steps: 3"), encoding="utf-8")
    one, three = (summary_of(capsys, "--config", name)["training"] for name in ("tiny.yaml", "more.yaml"))
    assert three["peak"] > one["peak"]
    assert explain.main(["memory", "--config", "more.yaml", "--device", "cpu"]) == 0
    assert "Of 3 micro-batches, all but the first start with gradients allocated." in capsys.readouterr().out


def test_the_newest_run_is_looked_at(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(trained)
    assert "runs/tiny" in summary_of(capsys)["source"].replace("\\", "/")


def test_the_tables_fit_a_terminal(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--config", "tiny.yaml", "--dtype", "float32", "--device", "cpu"]
    assert explain.main(["memory", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "Training step of 4 × 16 tokens on cpu, float32, eager" in lines
    assert [line.split()[0] for line in lines if line[:4] in ("fp32", "bf16", "fp16", "int8")] == [
        "fp32",
        "bf16",
        "fp16",
        "int8",
    ]
    assert any(line.startswith("peak of the step") and line.endswith("100.0 %") for line in lines)
    assert max(map(len, lines)) <= 100
    assert explain.main(["memory", *options, "--markdown"]) == 0
    assert "| peak of the step |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--batch", "0"], "--batch is 0, expected 1 to 1,000,000 (sequences)"),
        (["--batch", "1000001"], "--batch is 1,000,001, expected 1 to 1,000,000"),
        (["--seq", "1025"], "--seq is 1,025, expected 1 to 1,024 (block_size)"),
        (["optim.name=sgd"], "command line: optim.name: got 'sgd', expected one of adamw, muon"),
        (["--checkpoint", "runs"], "--published and --checkpoint are two models"),
        (["--device", "tpu"], "device tpu: expected auto"),
    ],
)
def test_a_mistake_gives_one_line(capsys: pytest.CaptureFixture[str], options: list[str], words: str) -> None:
    assert explain.main(["memory", "--published", "gpt2", *options]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_an_optimizer_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--published", "gpt2", "model.n_layer=1", "--batch", "1", "--seq", "1"]
    adamw, muon = (summary_of(capsys, *small, f"optim.name={name}") for name in ("adamw", "muon"))
    assert muon["optimizer"] == "muon"
    matrices = 12 * 768**2  # of the block: one momentum instead of two moments
    assert adamw["training"]["optimizer"] - muon["training"]["optimizer"] == 4 * matrices + 4 * 6  # and their steps
