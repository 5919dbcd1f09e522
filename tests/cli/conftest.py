"""A trained tiny run that the command line tests share."""

from pathlib import Path

import pytest

from gpt.cli import train
from tiny import CORPUS

TINY = """
run: {name: tiny, device: cpu, dtype: float32, compile: false}
data: {source: file, path: corpus.txt}
model: {n_layer: 1, n_head: 2, n_embd: 16, block_size: 16}
optim: {warmup_steps: 2}
train: {batch_size: 4, max_steps: 6, eval_interval: 3, log_interval: 1, sample_tokens: 10}
"""


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tiny.yaml, corpus.txt and the finished run runs/tiny; do not write into it."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "tiny.yaml").write_text(TINY, encoding="utf-8")
    (folder / "corpus.txt").write_text(CORPUS * 30, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert train.main(["--config", "tiny.yaml"]) == 0
    return folder


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with tiny.yaml and corpus.txt."""
    (tmp_path / "tiny.yaml").write_text(TINY, encoding="utf-8")
    (tmp_path / "corpus.txt").write_text(CORPUS * 30, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path
