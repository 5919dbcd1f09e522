"""Fixtures that several folders of tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gpt.config import ModelConfig
from gpt.model import GPT

CORPUS = (
    "It was the best of rooms, it was the worst of rooms; every door had a key, every key had a door.\n"
    "Who keeps the keys? asked Ada. The keeper, said Tom, and the keeper sleeps till seven.\n"
)


@pytest.fixture(autouse=True)
def _own_surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test sees the user's environment or leaves torch's generator moved for the next."""
    monkeypatch.delenv("GPT_DATA_DIR", raising=False)
    monkeypatch.delenv("GPT_OFFLINE", raising=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A small text file, about 18,000 characters."""
    path = tmp_path / "corpus.txt"
    path.write_text(CORPUS * 100, encoding="utf-8")
    return path


def tiny_config(**changes: object) -> ModelConfig:
    """A model that computes in a millisecond: 2 layers, 4 heads, 32 wide, 16 positions, 23 ids."""
    values = {"n_layer": 2, "n_head": 4, "n_embd": 32, "block_size": 16, "vocab_size": 23, **changes}
    return ModelConfig.model_validate(values)


@pytest.fixture
def tiny_model() -> GPT:
    """A tiny model in eval mode."""
    return GPT(tiny_config()).eval()
