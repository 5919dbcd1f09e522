"""What the scenarios share: a small text, a small configuration, and a trained run of it."""

from pathlib import Path

from gpt.config import LoadedConfig, load_config
from tiny import CORPUS

CONFIG = """
run: {name: tiny, device: cuda}
data: {source: file, path: corpus.txt}
model: {n_layer: 2, n_head: 4, n_kv_head: 2, n_embd: 32, block_size: 16, position: rope, norm: rmsnorm, qk_norm: true}
optim: {warmup_steps: 1}
train: {batch_size: 4, max_steps: 2, eval_interval: 2, log_interval: 2, sample_tokens: 2, eval_max_tokens: 50}
"""


def configured(*overrides: str) -> LoadedConfig:
    """The configuration with some values replaced; its files are in the working directory."""
    Path("corpus.txt").write_text(CORPUS * 10, encoding="utf-8")
    Path("tiny.yaml").write_text(CONFIG, encoding="utf-8")
    return load_config(Path("tiny.yaml"), overrides)
