"""Encode a corpus: its tokenizer, its token file, where the splits begin, and the description of all of it."""

import hashlib
import json
import os
import shutil
from bisect import bisect_right
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np

from gpt.config import DataConfig
from gpt.data.corpus_text import CorpusText, build_tokenizer
from gpt.data.dataset import META, TOKENS, seal
from gpt.data.tokenizers import Ids, Tokenizer, smallest_dtype
from gpt.data.tokens import Tokens, in_pieces
from gpt.system.errors import DataError
from gpt.system.files import make_folder, open_file, sync_file, sync_folder, temporary_folder, write_atomic
from gpt.system.progress import Report, announced, counted

THREADS = 8
"""Most blocks that are encoded at a time: the library of byte pairs takes 200 MB for each."""


def encode_into(
    folder: Path, corpus: CorpusText, config: DataConfig, tokenizer: Tokenizer | None, report: Report
) -> None:
    """Write `folder`, which is named by the fingerprint of the corpus and the options: all of it, or nothing."""
    try:
        make_folder(folder.parent)
        if not (folder / META).is_file():
            shutil.rmtree(folder, ignore_errors=True)  # it has lost its description
        with temporary_folder(folder) as temporary:
            _write(temporary, corpus, config, tokenizer, report)
            temporary.chmod(0o755)
            try:
                temporary.rename(folder)
            except OSError:
                if not (folder / META).is_file():  # else another process was faster
                    raise
            sync_folder(folder.parent)
    except OSError as error:
        raise DataError(f"cannot write {folder}: {error.strerror}; set data.dir to another folder") from None


def _write(folder: Path, corpus: CorpusText, config: DataConfig, tokenizer: Tokenizer | None, report: Report) -> None:
    before = [file.stat() for file in corpus.files]
    with announced(report, f"reading {corpus.name} for its tokenizer"):
        tokenizer = tokenizer or build_tokenizer(corpus, config)
    path, hashed = folder / TOKENS, hashlib.sha256()
    with counted(report, f"encoding {corpus.name}", corpus.size, "B") as advance, path.open("wb") as file:
        for ids in _encoded(tokenizer, corpus.blocks(advance)):
            hashed.update(ids.tobytes())
            file.write(ids.tobytes())
    path.chmod(0o644)
    sync_file(path)
    for source, old in zip(corpus.files, before, strict=True):
        new = source.stat()
        if (new.st_size, new.st_mtime_ns) != (old.st_size, old.st_mtime_ns):
            raise DataError(f"{source} was changed while it was read; start again")
    if path.stat().st_size == 0:
        raise DataError(f"{corpus.name} has no text in it")
    dtype = smallest_dtype(tokenizer.vocab_size)
    with open_file(path) as written:
        tokens = np.memmap(written, dtype, mode="r")
    meta = {
        "tokenizer": tokenizer.to_dict(),
        "dtype": dtype.str,
        "length": len(tokens),
        "sha256": hashed.hexdigest(),
        "splits": _splits(tokens, tokenizer, config),
    }
    write_atomic(folder / META, json.dumps(seal(meta)).encode())


def _encoded(tokenizer: Tokenizer, blocks: Iterator[str]) -> Iterator[Ids]:
    """Yield the ids of each block in order; NumPy and the library of byte pairs work in threads."""
    threads = min(THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(threads) as pool:
        while texts := list(islice(blocks, threads)):
            yield from pool.map(tokenizer.encode_narrow, texts)


def _splits(tokens: Tokens, tokenizer: Tokenizer, config: DataConfig) -> dict[str, tuple[int, int]]:
    """Return where each split begins and ends, in tokens: fractions of characters with byte pairs, else of tokens.

    Splits of the same characters make losses in bits per character comparable between tokenizers.
    """
    by_characters, length = config.tokenizer == "bpe", len(tokens)
    total = sum(map(tokenizer.count_chars, in_pieces(tokens))) if by_characters else length
    test = round(total * config.test_fraction)
    val = round(total * config.val_fraction) if test else total - int(total * (1 - config.val_fraction))
    ends = [total - test - val, total - test]
    if by_characters:
        ends = [_token_at(tokens, tokenizer, end) for end in ends]
    splits = {"train": (0, ends[0]), "val": (ends[0], ends[1]), "test": (ends[1], length)}
    if config.test_fraction == 0:
        splits["val"] = (ends[0], splits.pop("test")[1])
    return splits


def _token_at(tokens: Tokens, tokenizer: Tokenizer, character: int) -> int:
    """Return how many tokens begin before a character, counted from the beginning of the text."""
    passed = 0
    for piece in in_pieces(tokens):
        chars = tokenizer.count_chars(piece)
        if character < chars:
            counts = range(len(piece) + 1)
            return passed + bisect_right(counts, character, key=lambda n: tokenizer.count_chars(piece[:n])) - 1
        character -= chars
        passed += len(piece)
    return passed
