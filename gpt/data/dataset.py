"""A corpus as a token file: memory-mapped and verified."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt.data.saved_tokenizer import tokenizer_from_dict
from gpt.data.tokenizers import Tokenizer
from gpt.data.tokens import Tokens, in_pieces
from gpt.system.errors import DataError, explained
from gpt.system.files import MAX_JSON_BYTES, open_file, parse_json, read_file, sha256_of

META, TOKENS = "dataset.json", "tokens.bin"
"""Length, hash, splits and tokenizer; and the ids of the text, little-endian."""


@dataclass(frozen=True)
class Mixture:
    """Several texts, one after the other, that are sampled by weight.

    Attributes:
        ranges: where each begins and ends in the training split, (S, 2) int64.
        weights: how often a window is one of each, (S,); they need not add up to 1.
    """

    ranges: NDArray[np.int64]
    weights: NDArray[np.float64]


@dataclass(frozen=True)
class Dataset:
    """A tokenized corpus: its splits in the order of the text, memory-mapped."""

    train: Tokens
    val: Tokens
    tokenizer: Tokenizer  # built from the whole corpus
    fingerprint: str  # changes when the text, tokenizer or split changes
    test: Tokens | None = None  # which nothing is chosen by; None without `data.test_fraction`
    mixture: Mixture | None = None  # None: of one text

    def chars_per_token(self, tokens: Tokens) -> float:
        """Return the average characters per token of a split, or a part of one; 1 with a character tokenizer."""
        return sum(map(self.tokenizer.count_chars, in_pieces(tokens))) / len(tokens)

    def check_length(self, block_size: int) -> None:
        """Raise DataError unless both splits, and each text of a mixture, hold a window of `block_size + 1` tokens."""
        texts = [(0, len(self.train))] if self.mixture is None else self.mixture.ranges
        for name, length in (("train", min(int(end - begin) for begin, end in texts)), ("val", len(self.val))):
            if length < block_size + 1:
                raise DataError(
                    f"the {name} split has {length:,} tokens, fewer than block_size + 1 = {block_size + 1:,}; "
                    "use more text, a smaller model.block_size or another data.val_fraction"
                )


def mix(datasets: Sequence[Dataset], weights: Sequence[float] | None) -> Dataset:
    """Return several corpora of one tokenizer as one; training samples by weight, or by length if there are none."""
    ends = np.cumsum([len(each.train) for each in datasets])
    ranges = np.stack([np.append(0, ends[:-1]), ends], axis=1)
    mixture = Mixture(ranges, np.array(np.diff(ranges)[:, 0] if weights is None else weights, dtype=np.float64))
    train, val = (np.concatenate([getattr(each, name) for each in datasets]) for name in ("train", "val"))
    tests = [each.test for each in datasets if each.test is not None]
    sampled = "" if weights is None else f"@{':'.join(f'{weight:g}' for weight in weights)}"
    fingerprint = "+".join(each.fingerprint for each in datasets) + sampled
    test = np.concatenate(tests) if tests else None
    return Dataset(train, val, datasets[0].tokenizer, fingerprint, test, mixture)


def token_folders(folder: Path, fingerprint: str) -> list[Path]:
    """Return the folders of token files below `folder` that a dataset of this fingerprint consists of."""
    return [folder / name for name in fingerprint.partition("@")[0].split("+")]


def seal(meta: dict[str, Any]) -> dict[str, Any]:
    """Return the content of `META` with its hash: a changed vocabulary would give other texts, and no error."""
    return {**meta, "seal": _hash(meta)}


def unseal(sealed: dict[str, Any]) -> dict[str, Any]:
    """Return what was sealed; raise ValueError if it was changed."""
    meta = dict(sealed)
    if meta.pop("seal", None) != _hash(meta):
        raise ValueError(f"{META} has other content than was written")
    return meta


def _hash(meta: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def open_dataset(folder: Path) -> Dataset:
    """Memory-map the token file that `prepare` wrote, after comparing it with its hash."""
    try:
        return _open(folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, DataError) as error:
        name = getattr(error, "filename", None)
        reason = f"{Path(name).name}: {explained(error)}" if name else explained(error)
        raise DataError(
            f"the token files in {folder} are damaged ({reason}); delete that folder and start again"
        ) from None


def _open(folder: Path) -> Dataset:
    meta = unseal(parse_json(read_file(folder / META, MAX_JSON_BYTES)))
    tokenizer = tokenizer_from_dict(meta["tokenizer"])
    tokens = _map(folder / TOKENS, meta["dtype"], meta["length"], meta["sha256"])
    edges = [0, *chain.from_iterable(meta["splits"].values()), len(tokens)]
    if edges[::2] != edges[1::2] or edges != sorted(edges):
        raise ValueError("the splits do not follow one another from the first token to the last")
    opened = {name: tokens[begin:end] for name, (begin, end) in meta["splits"].items()}
    return Dataset(opened["train"], opened["val"], tokenizer, folder.name, opened.get("test"))


def _map(path: Path, dtype: str, length: int, sha256: str) -> Tokens:
    if path.stat().st_size != length * np.dtype(dtype).itemsize:
        raise ValueError(f"{path.name} has the wrong size")
    if sha256_of(path) != sha256:
        raise ValueError(f"{path.name} has another sha256 than was written")
    with open_file(path) as file:
        return np.memmap(file, dtype=dtype, mode="r", shape=(length,))
