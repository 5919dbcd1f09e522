"""Encode a corpus: write its token file, and a description with its tokenizer and its splits."""

import hashlib
import json
import os
import shutil
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, pairwise
from pathlib import Path

import numpy as np

from gpt.config import DataConfig
from gpt.data.corpus_text import CorpusText, build_tokenizer
from gpt.data.dataset import META, TOKENS, seal
from gpt.data.held_out import held_out_tokenizer
from gpt.data.items import ItemCorpus, item_ids, item_spans
from gpt.data.tokenizers import Ids, Tokenizer, smallest_dtype
from gpt.data.tokens import Tokens, in_pieces
from gpt.data.words import WordTokenizer, whole_words
from gpt.system.errors import DataError
from gpt.system.files import (
    make_folder,
    open_file,
    sync_file,
    sync_folder,
    temporary_folder,
    write_atomic,
)
from gpt.system.progress import Report, announce_if_slow, progress_bar

THREADS = 8
"""Most blocks that are encoded at a time: the library of byte pairs takes 200 MB for each."""
READABLE_FOLDER = 0o755
READABLE_FILE = 0o644
"""Modes that let others read what is written, since a corpus may be shared.

Temporary files and folders can be read by their owner only.
"""


def encode_into(
    folder: Path,
    corpus: CorpusText,
    config: DataConfig,
    tokenizer: Tokenizer | None,
    report: Report,
) -> None:
    """Write the token files of a corpus: all of them, or nothing.

    Args:
        folder: named by the fingerprint of the corpus and the options, see `preparation`.
        tokenizer: None means that it is built from the corpus.

    Raises:
        DataError: the corpus cannot be read or encoded, or the folder cannot be written.
    """
    try:
        make_folder(folder.parent)
        # A folder that has lost its description is of no use, and would be in the way of the new.
        if not (folder / META).is_file():
            shutil.rmtree(folder, ignore_errors=True)
        with temporary_folder(folder) as temporary:
            _write(temporary, corpus, config, tokenizer, report)
            temporary.chmod(READABLE_FOLDER)
            try:
                temporary.rename(folder)
            except OSError:
                # Another process may have been faster; its folder has the same content.
                if not (folder / META).is_file():
                    raise
            sync_folder(folder.parent)
    except OSError as error:
        raise DataError(
            f"cannot write {folder}: {error.strerror}; set data.dir to another folder"
        ) from None


def _write(
    folder: Path,
    corpus: CorpusText,
    config: DataConfig,
    tokenizer: Tokenizer | None,
    report: Report,
) -> None:
    """Write the token file, then its description, which tells readers that it is whole."""
    texts = [corpus, *corpus.held_out.values()]
    files: list[Path] = []
    for text in texts:
        files += text.files
    status_before = [file.stat() for file in files]
    with announce_if_slow(report, f"reading {corpus.name} for its tokenizer"):
        tokenizer = tokenizer or build_tokenizer(corpus, config)
    path = folder / TOKENS
    # Before anything is encoded: a held-out text may have characters that are refused.
    tokenizers = [tokenizer]
    for text in corpus.held_out.values():
        tokenizers.append(held_out_tokenizer(tokenizer, config, text))
    sha256, ends = _write_tokens(path, texts, tokenizers, report)
    # a text that changes under the reader would have tokens of both versions
    for file, before in zip(files, status_before, strict=True):
        after = file.stat()
        if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise DataError(f"{file} was changed while it was read; start again")
    dtype = smallest_dtype(tokenizer.vocab_size)
    with open_file(path) as written:
        tokens = np.memmap(written, dtype, mode="r")
    meta = {
        "tokenizer": tokenizer.to_dict(),
        "dtype": dtype.str,
        "length": len(tokens),
        "sha256": sha256,
        "splits": _splits_of_texts(tokens, ends, corpus, tokenizer, config),
    }
    if isinstance(corpus, ItemCorpus):
        meta["items"] = config.items
    if corpus.held_out:
        meta["held_out"] = list(corpus.held_out)
    write_atomic(folder / META, json.dumps(seal(meta)).encode())


def _write_tokens(
    path: Path, texts: Sequence[CorpusText], tokenizers: Sequence[Tokenizer], report: Report
) -> tuple[str, list[int]]:
    """Write the ids of some texts, one after the other, each by its tokenizer.

    Returns:
        The hex sha256 of the file, and the index of the token after the last of each text.
    """
    digest = hashlib.sha256()
    num_tokens = 0
    ends: list[int] = []
    with path.open("wb") as file:
        for text, tokenizer in zip(texts, tokenizers, strict=True):
            begin = num_tokens
            with progress_bar(report, f"encoding {text.name}", text.size, "B") as advance:
                for ids in _ids_of(text, tokenizer, advance):
                    data = ids.tobytes()
                    digest.update(data)
                    file.write(data)
                    num_tokens += len(ids)
            if num_tokens == begin:
                raise DataError(f"{text.name} has no text in it")
            ends.append(num_tokens)
    path.chmod(READABLE_FILE)  # a temporary file can be read by its owner only
    # The description that names this hash must not reach the disk before the tokens.
    sync_file(path)
    return digest.hexdigest(), ends


def _ids_of(
    text: CorpusText, tokenizer: Tokenizer, advance: Callable[[int], object]
) -> Iterator[Ids]:
    """Yield the ids of a text in order."""
    if isinstance(text, ItemCorpus):
        return text.encoded(tokenizer)
    return _encoded(tokenizer, text.blocks(advance))


def _encoded(tokenizer: Tokenizer, blocks: Iterator[str]) -> Iterator[Ids]:
    """Yield the ids of each block in order; NumPy and the library of byte pairs run in threads."""
    if isinstance(tokenizer, WordTokenizer):
        blocks = whole_words(blocks)
    num_threads = min(THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(num_threads) as pool:
        # As many blocks at a time as there are threads, so that no more of the text is in memory.
        while texts := list(islice(blocks, num_threads)):
            yield from pool.map(tokenizer.encode_narrow, texts)


def _splits_of_texts(
    tokens: Tokens,
    ends: Sequence[int],
    corpus: CorpusText,
    tokenizer: Tokenizer,
    config: DataConfig,
) -> dict[str, tuple[int, int]]:
    """Return where each split begins and ends: those of the corpus, then the held-out texts.

    Args:
        ends: the index after the last token of each text, the corpus first.
    """
    if isinstance(corpus, ItemCorpus):
        # It has left out of its own splits what held-out texts replace.
        splits = _splits_of_items(tokens[: ends[0]], tokenizer, corpus, config)
    elif "val" in corpus.held_out:
        # Nothing of the corpus has to validate, and a held-out test replaces its test split.
        splits = {"train": (0, ends[0])}
    else:
        splits = _splits(tokens[: ends[0]], tokenizer, config)
    # A held-out text begins where the one before it ends.
    for split, (begin, end) in zip(corpus.held_out, pairwise(ends), strict=True):
        splits[split] = (begin, end)
    return splits


def _splits(tokens: Tokens, tokenizer: Tokenizer, config: DataConfig) -> dict[str, tuple[int, int]]:
    """Return where each split of one text begins and ends, in tokens.

    With byte pairs and words the fractions are of characters, else of tokens: splits of the same
    characters make losses in bits per character comparable between tokenizers.
    """
    length = len(tokens)
    counts_characters = config.tokenizer in ("bpe", "word")
    total = length
    if counts_characters:
        total = sum(tokenizer.count_chars(piece) for piece in in_pieces(tokens))
    test = round(total * config.test_fraction)
    # Without a test split, the training split is rounded down as in nanoGPT, for comparable losses.
    val = total - int(total * (1 - config.val_fraction))
    if test > 0:
        val = round(total * config.val_fraction)
    end_of_train = total - test - val
    end_of_val = total - test
    if counts_characters:
        end_of_train = _token_at(tokens, tokenizer, end_of_train)
        end_of_val = _token_at(tokens, tokenizer, end_of_val)
    splits = {"train": (0, end_of_train)}
    if config.test_fraction == 0:
        splits["val"] = (end_of_train, length)
    else:
        splits["val"] = (end_of_train, end_of_val)
        splits["test"] = (end_of_val, length)
    return splits


def _splits_of_items(
    tokens: Tokens, tokenizer: Tokenizer, corpus: ItemCorpus, config: DataConfig
) -> dict[str, tuple[int, int]]:
    """Return where each split of a corpus begins and ends, in tokens, from its items."""
    spans = item_spans(tokens, item_ids(config.items, tokenizer).end)
    splits: dict[str, tuple[int, int]] = {}
    first = 0
    for name, size in zip(("train", "val", "test"), corpus.split_sizes, strict=True):
        # A split begins with its first item, and ends with its last one.
        if size > 0:
            splits[name] = (int(spans[first, 0]), int(spans[first + size - 1, 1]))
        first += size
    return splits


def _token_at(tokens: Tokens, tokenizer: Tokenizer, character: int) -> int:
    """Return the index of the token in which a character begins.

    Args:
        character: counted from the beginning of the text.
    """
    num_tokens_before = 0
    for piece in in_pieces(tokens):
        num_chars = tokenizer.count_chars(piece)
        if character < num_chars:
            return num_tokens_before + _token_in_piece(piece, tokenizer, character)
        character -= num_chars  # from here on counted from the beginning of the next piece
        num_tokens_before += len(piece)
    return num_tokens_before


def _token_in_piece(piece: Tokens, tokenizer: Tokenizer, character: int) -> int:
    """Return the index of the token of a piece in which a character begins.

    It is found by bisection, since to count characters takes a time linear in the tokens.
    """
    lengths = range(len(piece) + 1)
    # the least number of tokens in which more than `character` characters begin
    num_tokens = bisect_right(
        lengths, character, key=lambda length: tokenizer.count_chars(piece[:length])
    )
    return num_tokens - 1  # the last of them has the character
