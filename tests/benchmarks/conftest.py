"""A checkout that looks like nanoGPT's and trains in no time, beside a tiny configuration."""

from pathlib import Path

import pytest

from benchmarks.training_runs import NANOGPT_CONFIG

MODEL = """
from dataclasses import dataclass
import torch
from torch import nn
import torch.nn.functional as F

@dataclass
class GPTConfig:
    n_layer: int = 1
    n_head: int = 1
    n_embd: int = 8
    block_size: int = 64
    bias: bool = False
    dropout: float = 0.0
    vocab_size: int = 10

class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        print("a model of", config.n_embd)
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size)

    def forward(self, idx, targets):
        logits = self.lm_head(self.wte(idx))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def configure_optimizers(self, weight_decay, learning_rate, betas, device_type):
        return torch.optim.AdamW(self.parameters(), lr=learning_rate, betas=betas)
"""

PREPARE = """
from pathlib import Path
import numpy as np

text = Path("input.txt").read_text()
ids = np.array([sorted(set(text)).index(char) for char in text], dtype=np.uint16)
cut = int(len(ids) * 0.9)
ids[:cut].tofile("train.bin")
ids[cut:].tofile("val.bin")
"""

TRAIN = """
import sys
from pathlib import Path
import torch
from model import GPT, GPTConfig

assert "--max_iters=3" in sys.argv
shape = {"n_embd": 8, "vocab_size": 40, "block_size": 64}
Path("out-shakespeare-char").mkdir()
saved = {"model": GPT(GPTConfig(**shape)).state_dict(), "model_args": shape}
torch.save(saved, "out-shakespeare-char/ckpt.pt")
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with what a race needs of nanoGPT."""
    folder = tmp_path / "nanoGPT"
    for name, text in (
        ("model.py", MODEL),
        ("train.py", TRAIN),
        (NANOGPT_CONFIG, ""),
        ("data/shakespeare_char/prepare.py", PREPARE),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def _processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread each and no pauses; what a killed one leaves behind goes with the test."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("benchmarks.measure.PAUSE", 0.0)
