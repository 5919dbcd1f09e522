"""Texts with a data folder beside them, and damages of files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpt.config import DataConfig
from gpt.corpora import prepare
from gpt.data.dataset import Dataset, seal, unseal
from gpt.system.environment import Settings
from gpt.system.errors import DataError

OFFLINE = Settings(data_dir=None, cache_dir=Path("unused"), offline=True)
BPE: dict[str, Any] = {"tokenizer": "bpe", "bpe_vocab_size": 300}
TOKENIZERS: list[dict[str, Any]] = [{"tokenizer": "char"}, {"tokenizer": "byte"}, BPE]
BLOCK = 700
"""Characters that are encoded at a time; two blocks make a shard."""


class Place:
    """A folder of texts, of which one is prepared unless another path is given, and a data folder."""

    def __init__(self, folder: Path) -> None:
        self.files, self.data = folder / "files", folder / "data"
        self.text, self.tokens = self.files / "a.txt", self.data / "tokens"
        self.files.mkdir()
        self.reports: list[str] = []

    def write(self, text: str) -> None:
        self.text.write_text(text, encoding="utf-8", newline="")

    def prepare(self, **keys: Any) -> Dataset:
        values = {"source": "file", "path": str(self.text), "dir": str(self.data), **keys}
        return prepare(DataConfig.model_validate(values), OFFLINE, self.reports.append)

    def refusal(self, **keys: Any) -> str:
        with pytest.raises(DataError) as caught:
            self.prepare(**keys)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def folder(self) -> Path:
        (folder,) = self.tokens.iterdir()
        return folder

    def written(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.folder().iterdir()}

    def is_empty(self) -> bool:
        return not self.tokens.exists() or list(self.tokens.iterdir()) == []


def whole(data: Dataset) -> str:
    splits = [data.train, data.val] + ([] if data.test is None else [data.test])
    return data.tokenizer.decode(np.concatenate([np.asarray(split) for split in splits]))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def swap(path: Path) -> None:
    """Another order of the same ids, all of them valid."""
    path.write_bytes(path.read_bytes()[::-1])


def holding(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def changed(**values: Any) -> Callable[[Path], object]:
    """Writes other values into a JSON file, and the hash with them; None takes one out."""

    def change(path: Path) -> None:
        content = unseal(json.loads(path.read_text())) | values
        path.write_text(json.dumps(seal({key: value for key, value in content.items() if value is not None})))

    return change
