"""Prepare a large corpus: its tokenizer, its shards, where the splits begin, and the description of all of it."""

import json
import shutil
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np
from filelock import FileLock
from tqdm import tqdm

from gpt.config import DataConfig
from gpt.corpora.corpus_text import CorpusText
from gpt.corpora.shards import JOURNAL, Shard, ShardWriter
from gpt.corpora.vocabulary import build_tokenizer
from gpt.corpora.workers import WorkerLost
from gpt.data.dataset import META, seal
from gpt.data.tokenizers import Tokenizer, smallest_dtype
from gpt.data.tokens import in_pieces
from gpt.errors import DataError
from gpt.files import replace_folder, surely, write_atomic
from gpt.progress import Report, announced, silent

SHARD_TOKENS = 100_000_000


def unfinished(folder: Path) -> Path:
    """Return where the shards of a folder are until all are finished."""
    return folder.with_name(f"{folder.name}.partial")


def shard_into(
    folder: Path,
    corpus: CorpusText,
    config: DataConfig,
    tokenizer: Tokenizer | None,
    report: Report,
    force: bool = False,
) -> None:
    """Write the shards of a corpus beside `folder`, then move them there; what a killed process finished is kept.

    Args:
        folder: named by the fingerprint of the corpus and the options.
        corpus: the text.
        config: how it is encoded.
        tokenizer: None: one that is built from the corpus.
        report: takes lines for the user.
        force: encode again what is finished.

    Raises:
        DataError: the text cannot be read or encoded, after which nothing is left; or the folder cannot be written or
            a worker was killed, after which what is finished is left.
    """
    partial = unfinished(folder)
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder, report):
            if force and partial.exists():
                shutil.rmtree(partial)
            if (folder / META).is_file() and not force:  # another process was faster
                return
            partial.mkdir(exist_ok=True)
            try:
                _write(partial, corpus, config, tokenizer, report)
            except WorkerLost:
                raise
            except DataError:
                shutil.rmtree(partial)
                raise
            replace_folder(folder, partial)
    except OSError as error:
        raise DataError(
            f"cannot write {partial}: {error.strerror}; start again when that is mended, which keeps what is finished, "
            "or set data.dir to another folder"
        ) from None


@contextmanager
def _locked(folder: Path, report: Report) -> Iterator[None]:
    """Let one process at a time write a folder."""
    path = folder.with_name(f".{folder.name}.lock")
    with announced(report, f"waiting for another process that prepares {folder}"):
        lock = FileLock(path)
        lock.acquire()
    try:
        yield
    finally:
        with suppress(OSError):
            surely(path.unlink)  # before the release: filelock checks that the file is still there
        lock.release()


def _write(folder: Path, corpus: CorpusText, config: DataConfig, tokenizer: Tokenizer | None, report: Report) -> None:
    before = [file.path.stat() for file in corpus.files]
    writer = ShardWriter(folder, config.shard_tokens or SHARD_TOKENS)
    if writer.damaged:
        report(f"{folder / writer.damaged} is damaged; encoding again from there")
    if writer.finished:
        report(f"continuing after {len(writer.finished)} finished shards in {folder}")
    with announced(report, f"reading {corpus.name} for its tokenizer"):
        tokenizer = tokenizer or writer.tokenizer or build_tokenizer(corpus, config)
    with tqdm(total=corpus.size, unit="B", unit_scale=True, desc="encoding", disable=None, leave=False) as bar:
        tell = report if bar.disable else silent
        with announced(tell, f"encoding {corpus.name}, {corpus.size / 1e6:,.0f} MB"):
            writer.write(corpus, tokenizer, config.processes, bar.update, tell)
    for file, old in zip(corpus.files, before, strict=True):
        new = file.path.stat()
        if (new.st_size, new.st_mtime_ns) != (old.st_size, old.st_mtime_ns):
            raise DataError(f"{file.path} was changed while it was read; start again")
    if not writer.finished:
        raise DataError(f"{corpus.name} has no text in it")
    meta = {
        "tokenizer": tokenizer.to_dict(),
        "dtype": smallest_dtype(tokenizer.vocab_size).str,
        "sources": [{"file": str(file.path), "bytes": file.path.stat().st_size} for file in corpus.files],
        "shards": [asdict(shard) for shard in writer.finished],
        "splits": _splits(folder, writer.finished, tokenizer, config),
    }
    write_atomic(folder / META, json.dumps(seal(meta)).encode())
    (folder / JOURNAL).unlink()


def _splits(folder: Path, shards: list[Shard], tokenizer: Tokenizer, config: DataConfig) -> dict[str, tuple[int, int]]:
    """Return where each split begins and ends, in tokens.

    The fractions are of characters with byte pairs, as in `gpt.corpora.encoding`, otherwise of tokens.
    """
    by_characters = config.tokenizer == "bpe"
    total = sum(shard.chars if by_characters else shard.length for shard in shards)
    test = round(total * config.test_fraction)
    val = round(total * config.val_fraction) if test else total - int(total * (1 - config.val_fraction))
    ends = [total - test - val, total - test]
    if by_characters:
        ends = [_token_at(folder, shards, tokenizer, end) for end in ends]
    length = sum(shard.length for shard in shards)
    splits = {"train": (0, ends[0]), "val": (ends[0], ends[1]), "test": (ends[1], length)}
    if config.test_fraction == 0:
        splits["val"] = (ends[0], splits.pop("test")[1])
    return splits


def _token_at(folder: Path, shards: list[Shard], tokenizer: Tokenizer, character: int) -> int:
    """Return how many tokens begin before a character, counted from the beginning of the text."""
    passed = 0
    for shard in shards:
        if character >= shard.chars:
            character -= shard.chars
            passed += shard.length
            continue
        tokens = np.memmap(folder / shard.file, smallest_dtype(tokenizer.vocab_size), mode="r")
        for piece in in_pieces(tokens):
            chars = tokenizer.count_chars(piece)
            if character < chars:
                counts = range(len(piece) + 1)
                return passed + bisect_right(counts, character, key=lambda n: tokenizer.count_chars(piece[:n])) - 1
            character -= chars
            passed += len(piece)
    return passed
