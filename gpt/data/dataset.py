"""A corpus as token files: encoded once, split in order, and memory-mapped."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt.config import DataConfig
from gpt.data.bpe import learn_bpe, load_bpe
from gpt.data.corpora import locate_corpus
from gpt.data.saved_tokenizer import tokenizer_from_dict
from gpt.data.text import distinct_characters, read_pieces
from gpt.data.tokenizers import MAX_LISTED, ByteTokenizer, CharTokenizer, Tokenizer, smallest_dtype
from gpt.environment import Settings, expand_home
from gpt.errors import DataError
from gpt.files import release_cached_pages, sha256_of, sync_file
from gpt.progress import Report, announced

FORMAT = 1
"""Part of the fingerprint in checkpoints; raised when the same text gives other tokens than before."""

META = "dataset.json"
"""Lengths, hashes and tokenizer, written last. Folders without it, such as those of old versions, are encoded again."""

Tokens = NDArray[Any]


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


def prepare(
    config: DataConfig,
    settings: Settings,
    report: Report,
    force: bool = False,
    base: Tokenizer | None = None,
    add_characters: bool = False,
) -> Dataset:
    """Locate the corpus, encode it unless that was done before, and open the token files.

    Args:
        config: what to read.
        settings: the environment's settings.
        report: takes lines for the user.
        force: encode it again.
        base: tokenizer to use; None: one that is built from the corpus.
        add_characters: extend the vocabulary of `base` by the characters that it lacks.

    Raises:
        DataError: the corpus cannot be found, read or encoded, or the data folder cannot be written.
    """
    source = locate_corpus(config, settings, report)
    with announced(report, f"reading {source}"):
        tokenizer = None if base is None else _extended(base, source, config, add_characters)
        folder = expand_home(config.dir, "data.dir") / "tokens" / _fingerprint(config, source, tokenizer)
    if folder.exists() and (force or not (folder / META).is_file()):
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise DataError(f"cannot delete {folder}: {error.strerror}") from None
    if not folder.exists():
        with announced(report, f"encoding {source}, {source.stat().st_size / 1e6:,.0f} MB"):
            _encode_into(folder, source, config, tokenizer)
        report(f"encoded {source} into {folder}")
    with announced(report, f"verifying {folder}"):
        return open_dataset(folder)


def open_dataset(folder: Path) -> Dataset:
    """Memory-map the token files that `prepare` wrote.

    Raises:
        DataError: a file is missing or damaged.
    """
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        tokenizer = tokenizer_from_dict(meta["tokenizer"])
        train, val = (_map(folder / f"{split}.bin", meta["dtype"], **meta[split]) for split in ("train", "val"))
    except (OSError, ValueError, KeyError, TypeError, DataError) as error:
        raise DataError(
            f"the token files in {folder} are damaged ({error}); delete that folder and start again"
        ) from None
    return Dataset(train, val, tokenizer, folder.name)


def _fingerprint(config: DataConfig, source: Path, tokenizer: Tokenizer | None) -> str:
    content = _sha256(source)
    parts = [FORMAT, content, config.tokenizer, config.newlines, config.val_fraction]
    if tokenizer is not None:
        parts.append(tokenizer.to_dict())
    elif config.tokenizer_file is not None:
        parts.append(_sha256(expand_home(config.tokenizer_file, "data.tokenizer_file")))
    elif config.tokenizer == "bpe":
        parts.append(config.bpe_vocab_size)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _sha256(path: Path) -> str:
    try:
        return sha256_of(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None


def _encode_into(folder: Path, source: Path, config: DataConfig, tokenizer: Tokenizer | None) -> None:
    """Encode into a temporary folder, then move it into place: a reader sees all of it or nothing."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".tmp-", ignore_cleanup_errors=True) as name:
            temporary = Path(name)
            meta = _write_tokens(temporary, source, config, tokenizer or _build_tokenizer(source, config))
            (temporary / META).write_text(json.dumps(meta), encoding="utf-8")
            temporary.chmod(0o755)
            try:
                temporary.rename(folder)
            except OSError:
                if not (folder / META).is_file():  # otherwise another process was faster, with the same content
                    raise
    except OSError as error:
        raise DataError(f"cannot write {folder}: {error.strerror}; set data.dir to another folder") from None


def _extended(base: Tokenizer, source: Path, config: DataConfig, add_characters: bool) -> Tokenizer:
    """Return a tokenizer with which a corpus can be encoded: the one given, or that with more characters.

    Raises:
        DataError: characters are missing and must not be added.
    """
    if not isinstance(base, CharTokenizer):
        return base
    missing = [char for char in distinct_characters(source, config.newlines) if char not in base.stoi]
    if missing and not add_characters:
        listed = ", ".join(map(repr, missing[:MAX_LISTED]))
        more = f" and {len(missing) - MAX_LISTED} more" if len(missing) > MAX_LISTED else ""
        raise DataError(
            f"{source} has characters outside the vocabulary of {base.vocab_size} that the model begins with: "
            f"{listed}{more}; set train.init_new_characters=add to add them, or remove them from the text"
        )
    return CharTokenizer([*base.itos, *missing]) if missing else base


def _build_tokenizer(source: Path, config: DataConfig) -> Tokenizer:
    if config.tokenizer == "byte":
        return ByteTokenizer()
    if config.tokenizer == "bpe":
        if config.tokenizer_file is not None:
            return load_bpe(expand_home(config.tokenizer_file, "data.tokenizer_file"))
        return learn_bpe(read_pieces(source, config.newlines), config.bpe_vocab_size)
    chars = distinct_characters(source, config.newlines)
    if len(chars) < 2:
        raise DataError(f"{source} has {len(chars)} distinct characters; there is nothing to learn from it")
    return CharTokenizer(chars)


def _write_tokens(folder: Path, source: Path, config: DataConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """Write train.bin and val.bin; return the metadata for `open_dataset`."""
    everything, train_file, val_file = folder / "all.bin", folder / "train.bin", folder / "val.bin"
    total, train = 0, None
    pieces = read_pieces(source, config.newlines)
    with everything.open("wb") as file:
        for piece, is_last_of_train in _split_pieces(pieces, _train_characters(source, config)):
            ids = tokenizer.encode(piece)
            file.write(ids.tobytes())
            total += len(ids)
            train = total if is_last_of_train else train
    if total == 0:
        raise DataError(f"{source} has no text in it")
    dtype = smallest_dtype(tokenizer.vocab_size)
    train = int(total * (1 - config.val_fraction)) if train is None else train
    with everything.open("rb") as file, val_file.open("wb") as val:
        file.seek(train * dtype.itemsize)
        shutil.copyfileobj(file, val)
    os.truncate(everything, train * dtype.itemsize)
    everything.rename(train_file)
    for written in (train_file, val_file):
        sync_file(written)
    return {
        "tokenizer": tokenizer.to_dict(),
        "dtype": dtype.str,
        "train": {"length": train, "sha256": sha256_of(train_file)},
        "val": {"length": total - train, "sha256": sha256_of(val_file)},
    }


def _train_characters(source: Path, config: DataConfig) -> int | None:
    """Return how many characters are for training, where tokens are longer; None: the split is by tokens.

    A validation split of the same characters makes losses in bits per character comparable.
    """
    if config.tokenizer != "bpe":
        return None
    return int(sum(map(len, read_pieces(source, config.newlines))) * (1 - config.val_fraction))


def _split_pieces(pieces: Iterator[str], boundary: int | None) -> Iterator[tuple[str, bool]]:
    """Yield pieces of a text, and whether one ends at the boundary, counted in characters; it is cut there."""
    begin = 0
    for piece in pieces:
        cut = -1 if boundary is None else boundary - begin
        begin += len(piece)
        if 0 <= cut <= len(piece):
            yield piece[:cut], True
            piece = piece[cut:]
            boundary = None
        yield piece, False


def _map(path: Path, dtype: str, length: int, sha256: str) -> Tokens:
    if path.stat().st_size != length * np.dtype(dtype).itemsize:
        raise ValueError(f"{path.name} has the wrong size")
    if sha256_of(path) != sha256:
        raise ValueError(f"{path.name} has another sha256 than was written")
    release_cached_pages(path)
    if length == 0:
        return np.empty(0, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r", shape=(length,))
