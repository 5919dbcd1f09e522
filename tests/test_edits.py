"""Edits of a copy of the package, as a reader makes them: every command computes them, or says in a
line why not.

One edit of each kind, and the diffs of docs/changing.md; `planted_edits` has more of the model, for
each fast path.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from native_support import needs_compiler

import gpt
from changing_page import CALLBACK, DIFFS, PLUGIN
from plugin_files import plugin_of
from tiny import CORPUS

PACKAGE = Path(gpt.__file__).parent
MAX_LINES = {
    "activation": 1,
    "norm": 13,
    "position encoding": 16,
    "sampling filter": 11,
    "optimizer": 18,
}
MAX_LINES |= {"schedule": 1, "loss term": 7, "metric": 1}
RECIPE = """
run: {name: tiny, device: cpu, dtype: float32, threads: 1}
data: {source: file, path: corpus.txt}
model:
  {n_layer: 2, n_head: 1, n_embd: 32, block_size: 32, norm: rmsnorm, position: rope,
   qk_norm: true}
optim: {name: muon, warmup_steps: 2, grad_clip: 0.1}
train: {batch_size: 4, max_steps: 6, eval_interval: 3, log_interval: 1, sample_tokens: 10}
sample: {temperature: 0.9, top_k: 5, max_new_tokens: 40}
"""

EDITS: dict[str, tuple[str, str, str]] = {
    "attention times zero": ("model/gpt.py", "x = x + self.attn(", "x = x + 0.0 * self.attn("),
    "an MLP without residual": ("model/gpt.py", "return x + self.mlp(", "return self.mlp("),
    "scaled embeddings": ("model/gpt.py", "x = self.wte(idx)", "x = 3.0 * self.wte(idx)"),
    "label smoothing": (
        "training/loss.py",
        'reduction="sum")',
        'reduction="sum", label_smoothing=0.1)',
    ),
    "a slower warmup": (
        "training/schedule.py",
        "(step + 1) / config.warmup_steps",
        "0.1 * step / config.warmup_steps",
    ),
    "a momentum without Nesterov": (
        "training/muon.py",
        'momenta, group["momentum"])',
        "momenta, 1.0)",
    ),
    "another temperature": (
        "generation/sampling.py",
        "max(params.temperature,",
        "max(0.2 * params.temperature,",
    ),
}
DECODING = ("another temperature",)
"""Those that leave training as it is."""
OF_MODEL = [*list(EDITS)[:3], "new parts"]
"""Those that native training, the native engine and an exported page do not make."""
OF_TRAINING = [*OF_MODEL, "label smoothing", "a momentum without Nesterov"]
"""Those of code that the native step stands for: PyTorch trains with them."""
PARTS = (
    "model.mlp=mish",
    "model.norm=tanh",
    "model.position=alibi",
    "optim.name=lion",
    "optim.schedule=linear",
)
PARTS += ("train.loss_terms={confidence: 0.1}", "sample.typical_p=0.3")
"""What the diffs of the document add."""

SCRIPT = """
import contextlib, io, json, sys, threading
from pathlib import Path

import torch

import gpt
from gpt.checkpoint import load_trained
from gpt.cli import evaluate, explain, export, sample, train
from gpt.extras.serving.engine_thread import EngineThread

overrides = sys.argv[1:]


def run(command, *words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = command.main([*words])
        except SystemExit as stopped:
            code = stopped.code
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


def losses(name):
    rows = map(json.loads, Path(f"runs/{name}/metrics.jsonl").read_text().splitlines())
    return [row["train/loss"] for row in rows if "train/loss" in row]


def served():
    loaded = load_trained(Path("runs/default"), Path("runs"), torch.device("cpu"))
    params, lines, texts = loaded.config.sample.params(seed=3), [], []
    engine = EngineThread(loaded.model, loaded.tokenizer, report=lines.append)
    done = threading.Event()

    def receive(pieces):
        texts.extend(piece.text for piece in pieces)
        if pieces[-1].finish:
            done.set()

    engine.submit("The", params, receive)
    done.wait()
    engine.close()
    return {"out": "".join(texts), "lines": lines}


def traced():
    model, tokenizer = gpt.load("runs/default", device="cpu")
    idx = torch.tensor([list(tokenizer.encode("The keeper sleeps till seven"))])
    try:
        return float((gpt.run_with_cache(model, idx)[0] - model(idx)).abs().max())
    except gpt.GPTError as error:
        return str(error)


tiny = ["--config", "tiny.yaml"]
found = {
    name: run(train, *tiny, f"run.name={name}", f"run.kernels={kernels}", *overrides)
    for name, kernels in (("default", "auto"), ("torch", "torch"))
}
resume = ["--config", "tiny.yaml", "--resume", "runs/default/checkpoints/step-000003"]
found["resumed"] = run(train, *resume, "run.name=resumed", *overrides)
found["losses"] = {name: losses(name) for name in ("default", "torch", "resumed")}
for backend in ("auto", "eager", "native"):
    words = ["--checkpoint", "runs/default", "--prompt", "The", "--seed", "3", "--backend", backend]
    found[f"sample {backend}"] = run(sample, *words)
found["evaluate"] = run(evaluate, "--checkpoint", "runs/default/last")
last_line = Path("runs/default/metrics.jsonl").read_text().splitlines()[-1]
found["val"] = json.loads(last_line)["val/loss"]
found["served"], found["traced"] = served(), traced()
checkpoint = ["--checkpoint", "runs/default"]
found["explain"] = run(explain, "attention", *checkpoint, "--prompt", "The keeper")
found["export"] = run(export, *checkpoint, "--to", "html", "--output", "page.html")
print(json.dumps(found))
"""

EFFECTS = """
import sys
from pathlib import Path

import torch

from gpt.checkpoint import load_trained
from gpt.cli import sample, train
from gpt.config import SamplingParams
from gpt.generation.sampling import next_token_probabilities
from gpt.model import GPT
from gpt.training.optimizers import build_optimizer


def logits(config):
    torch.manual_seed(0)
    return GPT(config).eval()(torch.arange(16).view(1, 16) % 9)


assert train.main(["--config", "tiny.yaml", "run.kernels=torch", *sys.argv[1:]]) == 0
whole = load_trained(Path("runs/tiny/last"), Path("runs"), torch.device("cpu"))
words = ["--checkpoint", "runs/tiny", "--backend", "eager", "--prompt", "The", "--typical-p", "0.1"]
assert sample.main(words) == 0
config = whole.model.config
for key, other in (("mlp", "gelu"), ("position", "sinusoidal"), ("norm", "layernorm")):
    assert not torch.equal(logits(config), logits(config.model_copy(update={key: other}))), key
x = torch.tensor([[2.0, 1.9, 1.8, 0.0]])
assert 0 < next_token_probabilities(x, SamplingParams(typical_p=0.3)).count_nonzero() < 4
optimizer = build_optimizer(whole.model, whole.config.optim, torch.device("cpu")).optimizers["lion"]
assert type(optimizer).__name__ == "Lion"
assert "train/perplexity" in Path("runs/tiny/metrics.jsonl").read_text()
"""


def apply_if_missing(folder: Path, diff: str) -> None:
    """Apply a diff of the page, unless the reader of this checkout has already made that change."""
    command = ["git", "apply", "--recount"]
    check = [*command, "--check", "--reverse"]
    is_there = subprocess.run(
        check, cwd=folder, input=diff, text=True, capture_output=True, check=False
    )
    if is_there.returncode != 0:
        subprocess.run(command, cwd=folder, input=diff, text=True, check=True)


def run_copy(folder: Path, name: str, script: str) -> str:
    """Return what a script prints in a folder with a copy of the package that has an edit, one of
    `EDITS` if any.
    """
    shutil.copytree(
        PACKAGE, folder / "gpt", ignore=shutil.ignore_patterns("__pycache__", "node_modules")
    )
    (folder / "tiny.yaml").write_text(RECIPE, encoding="utf-8")
    (folder / "corpus.txt").write_text(CORPUS * 30, encoding="utf-8")
    if name in EDITS:
        file, old, new = EDITS[name]
        source = (folder / "gpt" / file).read_text(encoding="utf-8")
        assert source.count(old) == 1, f"{file} has {source.count(old)} times {old!r}"
        (folder / "gpt" / file).write_text(source.replace(old, new), encoding="utf-8")
    elif name == "new parts":
        for diff in DIFFS.values():
            apply_if_missing(folder, diff)
    # An empty PYTHONPATH, so that the copy in the folder is imported.
    environment = {
        **os.environ,
        "PYTHONPATH": "",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", script, *(PARTS if name == "new parts" else ())]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def unedited(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return json.loads(
        run_copy(tmp_path_factory.mktemp("unedited"), "none", SCRIPT).splitlines()[-1]
    )


def is_one_line_refusal(result: dict[str, Any]) -> bool:
    return (
        result["code"] == 2 and re.fullmatch(r"(.*\n)*error: [^\n]+\n", result["err"]) is not None
    )


@needs_compiler
@pytest.mark.compiler
@pytest.mark.parametrize("name", [*EDITS, "new parts"])
def test_no_command_ignores_an_edit_in_silence(
    name: str, unedited: dict[str, Any], tmp_path: Path
) -> None:
    found = json.loads(run_copy(tmp_path, name, SCRIPT).splitlines()[-1])
    losses = found["losses"]
    plain = unedited["losses"]["default"]
    assert losses["default"] == pytest.approx(losses["torch"], rel=1e-4)
    assert losses["resumed"] == losses["default"][3:]
    if name not in DECODING:
        assert losses["default"] != pytest.approx(plain, rel=1e-4)
    text = found["sample eager"]["out"]
    assert found["sample auto"]["out"] == text == "The" + found["served"]["out"] + "\n"
    assert found["sample native"]["out"] == text or is_one_line_refusal(found["sample native"])
    assert json.loads(found["evaluate"]["out"].splitlines()[-1])["loss"] == pytest.approx(
        found["val"], rel=1e-5
    )
    assert (
        found["traced"] == pytest.approx(0.0, abs=1e-4)
        if isinstance(found["traced"], float)
        else found["traced"]
    )
    assert found["explain"]["code"] == 0 or is_one_line_refusal(found["explain"])
    falls_back = "training with PyTorch's operators: " in found["default"]["err"]
    assert falls_back is (name in OF_TRAINING)
    if name in OF_MODEL:
        assert "no native backend, " in found["sample auto"]["err"]
        assert any("no native backend, " in line for line in found["served"]["lines"])
        assert is_one_line_refusal(found["export"])
    if name in DECODING:
        assert text != unedited["sample eager"]["out"]
        assert "sampling with PyTorch's operators: " in found["sample auto"]["err"]
        assert any(
            "sampling with PyTorch's operators: " in line for line in found["served"]["lines"]
        )


@needs_compiler
@pytest.mark.compiler
def test_without_an_edit_everything_is_native(unedited: dict[str, Any]) -> None:
    assert "training by native kernels" in unedited["default"]["err"]
    assert unedited["sample native"]["out"] == unedited["sample eager"]["out"]
    assert unedited["served"]["lines"] == []
    assert unedited["export"]["code"] == 0


def test_diff_of_the_document_is_in_one_file_and_short() -> None:
    assert {
        name: len(re.findall(r"^\+(?!\+\+)", diff, re.MULTILINE)) for name, diff in DIFFS.items()
    } == MAX_LINES
    assert all(diff.count("\n+++ ") + diff.startswith("+++ ") == 1 for diff in DIFFS.values())


def test_the_diffs_of_the_document_have_effects(tmp_path: Path) -> None:
    run_copy(tmp_path, "new parts", EFFECTS)


@pytest.mark.usefixtures("no_plugins")
def test_the_plugin_of_the_document_can_be_loaded(tmp_path: Path) -> None:
    # A reader of this checkout may have added mish itself.
    code = PLUGIN.replace('["mish"]', '["own_mish"]')
    assert plugin_of(tmp_path, code).names["gpt.model.layers:ACTIVATIONS"] == ["own_mish"]


def test_the_callback_of_the_document_logs_every_layer(workplace: Path) -> None:
    exec(CALLBACK.replace('gpt.train("my.txt"', 'run = gpt.train(config="tiny.yaml"'), names := {})
    logged = {name for row in names["run"].metrics for name in row}
    assert logged >= {"grad_norm/0", "attention_entropy/0"}
