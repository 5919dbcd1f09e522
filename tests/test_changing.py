"""Every diff in docs/changing.md is applied to a copy of the package, which then trains, resumes and samples."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gpt
from plugin_files import plugin_of
from tiny import CORPUS, TINY

PACKAGE = Path(gpt.__file__).parent
DOCUMENT = (PACKAGE.parent / "docs" / "changing.md").read_text(encoding="utf-8")
DIFFS = dict(re.findall(r"^## An? ([a-z ]+)$.*?^```diff\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE))
MAX_LINES = {"activation": 1, "position encoding": 16, "sampling filter": 11, "optimizer": 18, "metric": 1}

SCRIPT = """
import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import torch

from gpt.checkpoint import load_trained
from gpt.cli import sample, train
from gpt.config import SamplingParams
from gpt.generation.sampling import next_token_probabilities
from gpt.model import GPT
from gpt.training.optimizers import build_optimizer

CHOSEN = ["model.mlp=mish", "model.position=alibi", "optim.name=lion", "sample.typical_p=0.5", "run.kernels=torch"]


def logits(config):
    torch.manual_seed(0)
    return GPT(config).eval()(torch.arange(16).view(1, 16) % 9)


resume = ["run.name=again", "--resume", "runs/tiny/checkpoints/step-000003"]
for words in ([], resume):
    assert train.main(["--config", "tiny.yaml", *CHOSEN, *words]) == 0
folders = Path("runs/tiny/last"), Path("runs/again/last")
whole, again = (load_trained(folder, Path("runs"), torch.device("cpu")) for folder in folders)
assert all(map(torch.equal, whole.model.parameters(), again.model.parameters()))
words = ["--checkpoint", "runs/tiny", "--backend", "eager", "--max-new-tokens", "5", "--prompt", "The"]
with redirect_stdout(StringIO()) as printed:
    assert sample.main([*words, "--typical-p", "0.1"]) == 0
assert printed.getvalue().startswith("The")
config = whole.model.config
for key, other in (("mlp", "gelu"), ("position", "sinusoidal")):
    assert not torch.equal(logits(config), logits(config.model_copy(update={key: other}))), key
x = torch.tensor([[2.0, 1.9, 1.8, 0.0]])
assert 0 < next_token_probabilities(x, SamplingParams(typical_p=0.3)).count_nonzero() < 4
optimizer = build_optimizer(whole.model, whole.config.optim, torch.device("cpu")).optimizers["lion"]
assert type(optimizer).__name__ == "Lion"
metrics = [json.loads(line) for line in Path("runs/tiny/metrics.jsonl").read_text().splitlines()]
assert any("train/perplexity" in json.dumps(row) for row in metrics)
"""


def test_a_change_is_in_one_file_and_as_short_as_promised() -> None:
    lines = {name: re.findall(r"^\+(?!\+\+)", diff, re.MULTILINE) for name, diff in DIFFS.items()}
    assert {name: len(found) for name, found in lines.items()} == MAX_LINES
    assert all(diff.count("\n+++ ") + diff.startswith("+++ ") == 1 for diff in DIFFS.values())


def test_the_changed_package_resumes_exactly_and_samples_and_every_change_has_an_effect(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "gpt", ignore=shutil.ignore_patterns("__pycache__"))
    for name, diff in DIFFS.items():
        (tmp_path / "change.diff").write_text(diff, encoding="utf-8")
        done = subprocess.run(["git", "apply", "change.diff"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, (name, done.stderr)
    (tmp_path / "tiny.yaml").write_text(TINY, encoding="utf-8")
    (tmp_path / "corpus.txt").write_text(CORPUS * 30, encoding="utf-8")
    variables = {**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}  # the copy in the folder is imported
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("no_plugins")
def test_the_plugin_of_the_document_can_be_loaded(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)
    plugin = plugin_of(tmp_path, code)
    assert plugin.names["gpt.model.layers:ACTIVATIONS"] == ["mish"]
