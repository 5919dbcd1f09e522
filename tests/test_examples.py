"""The flat examples compute what the package computes."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import gpt
from gpt.cli import sample as sample_command
from gpt.cli import train as train_command
from gpt.config import ModelConfig
from gpt.data import CharTokenizer
from gpt.model import GPT

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
STEPS = 20
SHAPE: dict[str, Any] = {"n_layer": 2, "n_head": 2, "n_embd": 32, "block_size": 24}


def load_example(name: str) -> ModuleType:
    """Import a file of examples/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def text() -> str:
    return "\n".join(f"Line {number}: the square of it is {number**2}." for number in range(150))


def test_train_minimal_has_the_losses_of_the_trainer_bit_for_bit(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(text, encoding="utf-8")
    example = load_example("train_minimal")
    schedule = {"batch_size": 8, "max_steps": STEPS, "eval_interval": 10}
    recipe = example.Recipe(**SHAPE, **schedule, warmup_steps=5)
    losses = example.train(text, recipe, tmp_path / "model.pt")
    printed = re.findall(r"validation loss ([\d.]+)", capsys.readouterr().out)

    overrides = [f"model.{key}={value}" for key, value in SHAPE.items()]
    overrides += [f"train.{key}={value}" for key, value in schedule.items()]
    overrides += [
        "run.name=same",
        "run.kernels=torch",
        "run.dtype=float32",
        "train.log_interval=1",
        "optim.warmup_steps=5",
    ]
    overrides += ["data.source=file", "data.path=text.txt", "run.device=cpu"]
    # Everything that is not overridden here is a number that the example shares with the recipe.
    assert train_command.main(["--config", "shakespeare", *overrides]) == 0

    lines = [json.loads(line) for line in Path("runs/same/metrics.jsonl").read_text().splitlines()]
    expected = [line["train/loss"] for line in lines if "train/loss" in line]
    assert losses == expected
    val_losses = [line["val/loss"] for line in lines if "val/loss" in line]
    assert printed == [f"{loss:.4f}" for loss in val_losses]
    trained = gpt.load("runs/same/checkpoints/step-000020")[0]
    saved = torch.load("model.pt", weights_only=True)
    for name, weight in trained.state_dict().items():
        torch.testing.assert_close(saved["weights"][name], weight, rtol=0, atol=0)


@pytest.mark.parametrize("prompt", ["Line", "Line 1: the square of it"])
def test_sample_minimal_writes_the_text_of_the_sample_command(
    prompt: str,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    tokenizer = CharTokenizer(text)
    torch.manual_seed(0)
    model = GPT(ModelConfig(**SHAPE, vocab_size=tokenizer.vocab_size)).eval()
    gpt.save(model, tokenizer, "saved")
    example = load_example("sample_minimal")
    tokens = example.generate(model, tokenizer.encode(prompt).tolist(), num_tokens=60, seed=7)

    capsys.readouterr()
    options = [
        "--temperature",
        str(example.TEMPERATURE),
        "--top-k",
        str(example.TOP_K),
        "--seed",
        "7",
    ]
    options += ["--max-new-tokens", "60", "--backend", "eager", "--prompt", prompt]
    assert sample_command.main(["--checkpoint", "saved", *options]) == 0
    assert capsys.readouterr().out.rstrip("\n") == (prompt + tokenizer.decode(tokens)).rstrip("\n")
