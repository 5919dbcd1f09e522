from pathlib import Path

import pytest

from gpt.accounting.disk import checkpoint_bytes, require_disk
from gpt.config import Config
from gpt.errors import CheckpointError
from tiny import tiny_config


def test_weights_and_what_the_optimizer_keeps_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = Config(model=tiny_config(n_layer=1, n_embd=4, n_head=1, vocab_size=10, block_size=2, bias=False))
    weights = 10 * 4 + 2 * 4 + 4 * (4 + 4 + 4 + 4) + 4 * 16 + 16 * 4  # embeddings, positions, attention, MLP
    assert checkpoint_bytes(config) == 4 * weights * 3
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 2 * checkpoint_bytes(config)}))
    require_disk(tmp_path / "not" / "there", config, checkpoints=2)
    with pytest.raises(CheckpointError, match=r"need at least 0.0 MiB, and its disk has 0.0 MiB free; make room"):
        require_disk(tmp_path, config, checkpoints=3)
