from pathlib import Path

import pytest

from corpora.place import BLOCK, Place
from gpt.corpora import corpus_text, shards


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    for module in (corpus_text, shards):
        monkeypatch.setattr(module, "BLOCK", BLOCK)
    return Place(tmp_path)
