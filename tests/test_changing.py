"""Every diff in docs/changing.md is applied to a copy of the package, which then trains, resumes and samples."""

import json
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
from pathlib import Path

import torch

from gpt.checkpoint import load_trained
from gpt.cli import sample, train
from gpt.config import SamplingParams
from gpt.generation.sampling import next_token_probabilities
from gpt.model import GPT
from gpt.training.optimizers import build_optimizer

CHOSEN = ["model.mlp=mish", "model.position=alibi", "optim.name=lion", "sample.typical_p=0.5", "run.kernels=torch"]


def run(command, *words):
    assert command.main([*words]) == 0


def logits(config):
    torch.manual_seed(0)
    return GPT(config).eval()(torch.arange(16).view(1, 16) % 9)


run(train, "--config", "tiny.yaml", *CHOSEN)
run(train, "--config", "tiny.yaml", *CHOSEN, "run.name=again", "--resume", "runs/tiny/checkpoints/step-000003")
folders = Path("runs/tiny/last"), Path("runs/again/last")
whole, again = (load_trained(folder, Path("runs"), torch.device("cpu")) for folder in folders)
pairs = zip(whole.model.parameters(), again.model.parameters(), strict=True)
words = ["--checkpoint", "runs/tiny", "--backend", "eager", "--max-new-tokens", "5", "--prompt", "The"]
run(sample, *words, "--typical-p", "0.1", "--output", "text.txt")
config, x = whole.model.config, torch.tensor([[2.0, 1.9, 1.8, 0.0]])
metrics = [json.loads(line) for line in Path("runs/tiny/metrics.jsonl").read_text().splitlines()]
optimizer = build_optimizer(whole.model, whole.config.optim, torch.device("cpu")).optimizers["lion"]
print(json.dumps({
    "resumed exactly": all(torch.equal(one, other) for one, other in pairs),
    "text": Path("text.txt").read_text(),
    "activation": not torch.equal(logits(config), logits(config.model_copy(update={"mlp": "gelu"}))),
    "position encoding": not torch.equal(logits(config), logits(config.model_copy(update={"position": "sinusoidal"}))),
    "sampling filter": next_token_probabilities(x, SamplingParams(typical_p=0.3)).count_nonzero().item(),
    "optimizer": type(optimizer).__name__,
    "metric": any("train/perplexity" in json.dumps(row) for row in metrics),
}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What the script says of a package with all changes."""
    folder = tmp_path_factory.mktemp("changed")
    shutil.copytree(PACKAGE, folder / "gpt", ignore=shutil.ignore_patterns("__pycache__"))
    for name, diff in DIFFS.items():
        (folder / "change.diff").write_text(diff, encoding="utf-8")
        done = subprocess.run(["git", "apply", "change.diff"], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (name, done.stderr)
    (folder / "tiny.yaml").write_text(TINY, encoding="utf-8")
    (folder / "corpus.txt").write_text(CORPUS * 30, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=folder, capture_output=True, text=True, check=False, env=_environment()
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def _environment() -> dict[str, str]:
    """No path of this package, so that the copy in the working directory is imported."""
    return {**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}


def test_a_change_is_in_one_file_and_as_short_as_promised() -> None:
    lines = {name: re.findall(r"^\+(?!\+\+)", diff, re.MULTILINE) for name, diff in DIFFS.items()}
    assert {name: len(found) for name, found in lines.items()} == MAX_LINES
    assert all(diff.count("\n+++ ") + diff.startswith("+++ ") == 1 for diff in DIFFS.values())


def test_the_changed_package_resumes_exactly_and_samples(found: dict[str, object]) -> None:
    assert found["resumed exactly"] is True
    assert str(found["text"]).startswith("The")


def test_every_change_has_an_effect(found: dict[str, object]) -> None:
    expected = {"activation": True, "position encoding": True, "optimizer": "Lion", "metric": True}
    assert {name: found[name] for name in expected} == expected
    assert 0 < int(str(found["sampling filter"])) < 4


@pytest.mark.usefixtures("no_plugins")
def test_the_plugin_of_the_document_can_be_loaded(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)
    plugin = plugin_of(tmp_path, code)
    assert plugin.names("model.mlp") == ["mish"]
    assert plugin.names("sample.*") == ["sharpen"]
