"""Write the token files of a corpus that is one text file, in one process."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpt.config import DataConfig
from gpt.corpora.corpus_text import CorpusText
from gpt.corpora.text import read_pieces
from gpt.corpora.vocabulary import build_tokenizer
from gpt.data.dataset import META, seal
from gpt.data.tokenizers import Tokenizer, smallest_dtype
from gpt.errors import DataError
from gpt.files import replace_folder, sha256_of, sync_file, temporary_folder


def encode_into(
    folder: Path, corpus: CorpusText, config: DataConfig, tokenizer: Tokenizer | None, force: bool = False
) -> None:
    """Encode into a temporary folder, then move it into place: a reader sees all of it or nothing.

    Args:
        folder: named by the fingerprint of the corpus and the options.
        corpus: the text.
        config: how it is encoded.
        tokenizer: None: one that is built from the corpus.
        force: replace a folder that is complete.

    Raises:
        DataError: the text cannot be read or encoded, or the folder cannot be written; what was there still is.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(folder) as temporary:
            source = corpus.files[0].path
            meta = _write_tokens(temporary, source, config, tokenizer or build_tokenizer(corpus, config))
            (temporary / META).write_text(json.dumps(seal(meta)), encoding="utf-8")
            temporary.chmod(0o755)
            if force or not (folder / META).is_file():  # otherwise another process was faster, with the same content
                replace_folder(folder, temporary)
    except OSError as error:
        raise DataError(f"cannot write {folder}: {error.strerror}; set data.dir to another folder") from None


def _write_tokens(folder: Path, source: Path, config: DataConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """Write train.bin and val.bin; return the metadata for `open_dataset`."""
    everything, train_file, val_file = folder / "all.bin", folder / "train.bin", folder / "val.bin"
    total, train = 0, None
    pieces = read_pieces(source, config.newlines)
    with everything.open("wb") as file:
        for piece, is_last_of_train in _split_pieces(pieces, _train_characters(source, config)):
            ids = tokenizer.encode_narrow(piece)
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
