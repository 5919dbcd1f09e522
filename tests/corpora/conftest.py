from pathlib import Path

import pytest

from corpora.place import BLOCK, Place
from gpt.corpora import corpus_text, sharding


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(corpus_text, "BLOCK", BLOCK)
    monkeypatch.setattr(sharding, "SHARD_BLOCKS", 2)
    return Place(tmp_path)
