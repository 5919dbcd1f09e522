"""Encode a corpus: its tokenizer, its shards, where the splits begin, and the description of all of it."""

import json
import shutil
import sys
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from functools import partial as bind
from itertools import islice
from pathlib import Path

import numpy as np
from filelock import FileLock
from tqdm import tqdm

from gpt.config import DataConfig
from gpt.corpora.corpus_text import Advance, CorpusText
from gpt.corpora.shards import JOURNAL, Shard, ShardWriter
from gpt.corpora.vocabulary import build_tokenizer
from gpt.corpora.workers import WorkerLost, map_texts
from gpt.data.dataset import META, seal
from gpt.data.tokenizers import Tokenizer, smallest_dtype
from gpt.data.tokens import in_pieces
from gpt.errors import DataError
from gpt.files import replace_folder, surely, write_atomic
from gpt.progress import Report, announced, silent

SHARD_TOKENS = 100_000_000


def is_whole(corpus: CorpusText, config: DataConfig) -> bool:
    """Return whether a corpus is encoded at once, in this process and into one shard."""
    return corpus.fits_one_file and config.shard_tokens is None and config.test_fraction == 0


def unfinished(folder: Path) -> Path:
    """Return where the shards of a folder are until all are finished."""
    return folder.with_name(f"{folder.name}.partial")


def encode_into(
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
        tokenizer: None: one that is built from the corpus.
        force: encode again what is finished.

    Raises:
        DataError: the text cannot be read or encoded, after which nothing is left; or the folder cannot be written or
            a worker was killed, after which what is finished is left.
    """
    partial = unfinished(folder)
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder, report):
            if partial.exists() and (force or is_whole(corpus, config)):
                shutil.rmtree(partial)
            # another process was faster
            if (folder / META).is_file() and not force:
                return
            partial.mkdir(exist_ok=True)
            try:
                _write(partial, corpus, config, tokenizer, report)
            except BaseException as error:
                is_kept = isinstance(error, WorkerLost) or not isinstance(error, DataError)
                if is_whole(corpus, config) or not is_kept:
                    surely(bind(shutil.rmtree, partial, ignore_errors=True))
                raise
            replace_folder(folder, partial)
    except OSError as error:
        again = "" if is_whole(corpus, config) else "start again when that is mended, which keeps what is finished, or "
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
            surely(path.unlink)  # before the release: filelock checks that the file is still there
        lock.release()


def _write(folder: Path, corpus: CorpusText, config: DataConfig, tokenizer: Tokenizer | None, report: Report) -> None:
    before = [file.path.stat() for file in corpus.files]
    writer = ShardWriter(folder, sys.maxsize if is_whole(corpus, config) else config.shard_tokens or SHARD_TOKENS)
    if writer.damaged:
        report(f"{folder / writer.damaged} is damaged; encoding again from there")
    if writer.finished:
        report(f"continuing after {len(writer.finished)} finished shards in {folder}")
    with announced(report, f"reading {corpus.name} for its tokenizer"):
        tokenizer = tokenizer or writer.tokenizer or build_tokenizer(corpus, config)
    with tqdm(total=corpus.size, unit="B", unit_scale=True, desc="encoding", disable=None, leave=False) as bar:
        tell = report if bar.disable else silent
        with announced(tell, f"encoding {corpus.name}, {corpus.size / 1e6:,.0f} MB"):
            boundary = _write_shards(writer, corpus, config, tokenizer, bar.update, tell)
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
        "splits": _splits(folder, writer.finished, tokenizer, config)
        if boundary is None
        else {"train": (0, boundary), "val": (boundary, writer.length)},
    }
    write_atomic(folder / META, json.dumps(seal(meta)).encode())
    (folder / JOURNAL).unlink()


def _write_shards(
    writer: ShardWriter,
    corpus: CorpusText,
    config: DataConfig,
    tokenizer: Tokenizer,
    advance: Advance,
    report: Report,
) -> int | None:
    """Encode what is not finished; return where a text was cut between its splits, in tokens, None where it was not.

    Byte pairs of a whole text are those of each split by itself, so that no token is in both. Splits of the same
    characters make losses in bits per character comparable between tokenizers.
    """
    if not is_whole(corpus, config):
        blocks = islice(corpus.blocks(advance), writer.position[0], None)
        dtype = smallest_dtype(tokenizer.vocab_size)
        with closing(map_texts(tokenizer, blocks, config.processes)) as encoded:
            writer.write((np.frombuffer(ids, dtype) for ids in encoded), tokenizer, report)
        return None
    if config.tokenizer != "bpe":
        writer.write(map(tokenizer.encode_narrow, corpus.pieces(advance)), tokenizer, silent)
        return None
    end = int(sum(map(len, corpus.pieces())) * (1 - config.val_fraction))
    writer.write(map(tokenizer.encode_narrow, _between(corpus.pieces(advance), 0, end)), tokenizer, silent)
    boundary = writer.length
    writer.write(map(tokenizer.encode_narrow, _between(corpus.pieces(), end, sys.maxsize)), tokenizer, silent)
    return boundary


def _between(pieces: Iterator[str], begin: int, end: int) -> Iterator[str]:
    """Yield the characters from `begin` to `end` of a text that comes in pieces."""
    for piece in pieces:
        if part := piece[max(0, begin) : max(0, end)]:
            yield part
        begin, end = begin - len(piece), end - len(piece)


def _splits(folder: Path, shards: list[Shard], tokenizer: Tokenizer, config: DataConfig) -> dict[str, tuple[int, int]]:
    """Return where each split begins and ends, in tokens: fractions of characters with byte pairs, else of tokens."""
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
