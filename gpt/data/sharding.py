"""Encode a corpus: its tokenizer, its shards, where the splits begin, and the description of all of it.

A shard is the ids of `SHARD_BLOCKS` blocks of text; when it is on disk, a journal gets its hash. What a killed process
has finished is kept, up to a shard that was damaged since, and what follows is what that process would have written.
"""

import hashlib
import json
import os
import shutil
from bisect import bisect_right
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import islice, takewhile
from pathlib import Path

import numpy as np
from filelock import FileLock

from gpt.config import DataConfig
from gpt.data.corpus_text import CorpusText, build_tokenizer
from gpt.data.dataset import META, seal, unseal
from gpt.data.saved_tokenizer import tokenizer_from_dict
from gpt.data.tokenizers import Ids, Tokenizer, smallest_dtype
from gpt.data.tokens import Tokens, in_pieces, join_shards
from gpt.system.errors import DataError
from gpt.system.files import sha256_of, sync_folder, write_atomic
from gpt.system.progress import Report, announced, counted

SHARD_BLOCKS = 16
THREADS = 8
"""Most blocks that are encoded at a time: the library of byte pairs takes 200 MB for each."""
JOURNAL = "journal.json"
"""Of a folder that is not finished: its tokenizer and the hashes of its shards, sealed."""


def encode_into(
    folder: Path, corpus: CorpusText, config: DataConfig, tokenizer: Tokenizer | None, report: Report
) -> None:
    """Write the shards of a corpus beside `folder`, then move them there.

    The folder is named by the fingerprint of the corpus and the options. A text that cannot be read or encoded leaves
    nothing; after anything else, what is finished is left.
    """
    partial = folder.with_name(f"{folder.name}.partial")
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder, report):
            if (folder / META).is_file():  # another process was faster
                return
            partial.mkdir(exist_ok=True)
            try:
                _write(partial, corpus, config, tokenizer, report)
            except DataError:
                shutil.rmtree(partial, ignore_errors=True)
                raise
            if folder.exists():  # without its description
                shutil.rmtree(folder)
            partial.rename(folder)
            sync_folder(folder.parent)
    except OSError as error:
        again = "start again when that is mended, which keeps what is finished, or "
        raise DataError(f"cannot write {partial}: {error.strerror}; {again}set data.dir to another folder") from None


@contextmanager
def _locked(folder: Path, report: Report) -> Iterator[None]:
    path = folder.with_name(f".{folder.name}.lock")
    with announced(report, f"waiting for another process that prepares {folder}"):
        lock = FileLock(path)
        lock.acquire()
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # before the release: filelock checks that the file is still there
        lock.release()


def _write(folder: Path, corpus: CorpusText, config: DataConfig, tokenizer: Tokenizer | None, report: Report) -> None:
    """Write the shards that are missing, each followed by the journal, and last the description of all of them."""
    before = [file.stat() for file in corpus.files]
    for left in folder.glob(".*.tmp"):  # of a process that was killed
        shutil.rmtree(left)
    saved, hashes = _finished(folder)
    with announced(report, f"reading {corpus.name} for its tokenizer"):
        tokenizer = saved or tokenizer or build_tokenizer(corpus, config)
    with counted(report, f"encoding {corpus.name}", corpus.size, "B") as advance:
        encoded = _encoded(tokenizer, islice(corpus.blocks(advance), len(hashes) * SHARD_BLOCKS, None))
        _write_journal(folder, tokenizer, hashes)
        while shard := list(islice(encoded, SHARD_BLOCKS)):
            content = np.concatenate(shard).tobytes()
            write_atomic(_shard(folder, len(hashes)), content)
            hashes.append(hashlib.sha256(content).hexdigest())
            _write_journal(folder, tokenizer, hashes)
    for file, old in zip(corpus.files, before, strict=True):
        new = file.stat()
        if (new.st_size, new.st_mtime_ns) != (old.st_size, old.st_mtime_ns):
            raise DataError(f"{file} was changed while it was read; start again")
    if not hashes:
        raise DataError(f"{corpus.name} has no text in it")
    dtype = smallest_dtype(tokenizer.vocab_size)
    paths = [_shard(folder, number) for number in range(len(hashes))]
    shards = [np.memmap(path, dtype, mode="r") for path in paths]
    meta = {
        "tokenizer": tokenizer.to_dict(),
        "dtype": dtype.str,
        "shards": [
            {"file": path.name, "length": len(shard), "sha256": sha256}
            for path, shard, sha256 in zip(paths, shards, hashes, strict=True)
        ],
        "splits": _splits(join_shards(shards, 0, sum(map(len, shards))), tokenizer, config),
    }
    write_atomic(folder / META, json.dumps(seal(meta)).encode())
    (folder / JOURNAL).unlink()


def _shard(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:06d}.bin"


def _write_journal(folder: Path, tokenizer: Tokenizer, hashes: list[str]) -> None:
    content = seal({"tokenizer": tokenizer.to_dict(), "shards": hashes})
    write_atomic(folder / JOURNAL, json.dumps(content).encode())


def _finished(folder: Path) -> tuple[Tokenizer | None, list[str]]:
    """Return the tokenizer of a folder that was begun, and the hashes of its first shards that are undamaged."""
    try:
        journal = unseal(json.loads((folder / JOURNAL).read_bytes()))
        tokenizer, hashes = tokenizer_from_dict(journal["tokenizer"]), journal["shards"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, DataError):
        return None, []
    paths = (_shard(folder, number) for number in range(len(hashes)))
    there = map(sha256_of, takewhile(Path.is_file, paths))
    same = takewhile(lambda pair: pair[0] == pair[1], zip(hashes, there, strict=False))
    return tokenizer, [sha256 for sha256, _ in same]


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
