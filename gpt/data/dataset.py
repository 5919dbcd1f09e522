"""A corpus as token files: memory-mapped and verified."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpt.data.saved_tokenizer import tokenizer_from_dict
from gpt.data.tokenizers import Tokenizer
from gpt.data.tokens import Tokens
from gpt.errors import DataError
from gpt.files import release_cached_pages, sha256_of

META = "dataset.json"
"""Lengths, hashes and tokenizer, written last. Folders without it, such as those of old versions, are encoded again."""


@dataclass(frozen=True)
class Dataset:
    """A tokenized corpus.

    Attributes:
        train: token ids of the first part, memory-mapped.
        val: token ids of the rest, memory-mapped.
        tokenizer: built from the whole corpus.
        fingerprint: changes when the text, tokenizer or split changes.
    """

    train: Tokens
    val: Tokens
    tokenizer: Tokenizer
    fingerprint: str

    def chars_per_token(self, tokens: Tokens) -> float:
        """Return the average characters per token of a split, or a part of one; 1 with a character tokenizer."""
        return self.tokenizer.count_chars(tokens) / len(tokens)

    def check_length(self, block_size: int) -> None:
        """Check that both splits hold one window.

        Raises:
            DataError: a split has fewer than `block_size + 1` tokens.
        """
        for name, tokens in (("train", self.train), ("val", self.val)):
            if len(tokens) < block_size + 1:
                raise DataError(
                    f"the {name} split has {len(tokens):,} tokens, fewer than block_size + 1 = {block_size + 1:,}; "
                    "use more text, a smaller model.block_size or another data.val_fraction"
                )


def seal(meta: dict[str, Any]) -> dict[str, Any]:
    """Return the content of `META` with its hash: a changed vocabulary would give other texts, and no error."""
    return {**meta, "sha256": _hash(meta)}


def unseal(sealed: dict[str, Any]) -> dict[str, Any]:
    """Return what was sealed; files of old versions have no hash.

    Raises:
        ValueError: it was changed.
    """
    meta = {key: value for key, value in sealed.items() if key != "sha256"}
    if sealed.get("sha256", _hash(meta)) != _hash(meta):
        raise ValueError(f"{META} has another sha256 than was written")
    return meta


def _hash(meta: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def open_dataset(folder: Path) -> Dataset:
    """Memory-map the token files that `prepare` wrote.

    Raises:
        DataError: a file is missing or damaged.
    """
    try:
        meta = unseal(json.loads((folder / META).read_text(encoding="utf-8")))
        tokenizer = tokenizer_from_dict(meta["tokenizer"])
        train, val = (_map(folder / f"{split}.bin", meta["dtype"], **meta[split]) for split in ("train", "val"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, DataError) as error:
        raise DataError(
            f"the token files in {folder} are damaged ({error}); delete that folder and start again"
        ) from None
    return Dataset(train, val, tokenizer, folder.name)


def _map(path: Path, dtype: str, length: int, sha256: str) -> Tokens:
    if path.stat().st_size != length * np.dtype(dtype).itemsize:
        raise ValueError(f"{path.name} has the wrong size")
    if sha256_of(path) != sha256:
        raise ValueError(f"{path.name} has another sha256 than was written")
    release_cached_pages(path)
    if length == 0:
        return np.empty(0, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r", shape=(length,))
