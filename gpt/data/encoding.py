"""Encode a corpus into a token file, and describe its tokenizer and splits in a second file."""

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
"""Most blocks that are encoded at a time, since byte pairs take 200 MB of memory for each."""
READABLE_FOLDER = 0o755
READABLE_FILE = 0o644
"""Modes that let other users read the token files, since a corpus may be shared.

Temporary files and folders can otherwise be read by their owner only.
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
        folder: a folder that is named by the fingerprint, see `gpt.data.preparation`.
        tokenizer: None means that it is built from the corpus.

    Raises:
        DataError: the corpus cannot be read or encoded, or the folder cannot be written.
    """
    try:
        make_folder(folder.parent)
        # A folder without its description is incomplete, and the new folder could not be renamed to
        # its name.
        if not (folder / META).is_file():
            shutil.rmtree(folder, ignore_errors=True)
        with temporary_folder(folder) as temporary:
            _write(temporary, corpus, config, tokenizer, report)
            temporary.chmod(READABLE_FOLDER)
            try:
                temporary.rename(folder)
            except OSError:
                # Another process may have written the same content first, which is as good.
                if not (folder / META).is_file():
                    raise
            sync_folder(folder.parent)  # so that the new name survives a crash
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
    """Write the token file and then its description, which shows that the token file is whole."""
    texts = [corpus, *corpus.held_out.values()]
    files: list[Path] = []
    for text in texts:
        files += text.files
    status_before = [file.stat() for file in files]  # to notice a change while files are read
    with announce_if_slow(report, f"reading {corpus.name} for its tokenizer"):
        tokenizer = tokenizer or build_tokenizer(corpus, config)
    path = folder / TOKENS
    # The texts are checked before anything is encoded, which may take minutes: a held-out text may
    # have characters that its tokenizer refuses.
    tokenizers = [tokenizer]
    for text in corpus.held_out.values():
        tokenizers.append(held_out_tokenizer(tokenizer, config, text))
    sha256, ends = _write_tokens(path, texts, tokenizers, report)
    # The tokens of a file that was changed in the meantime may be of both versions.
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
    """Write the ids of texts one after the other, each encoded by the tokenizer at its index.

    Returns:
        The hex sha256 of the file, and for each text the index after its last token.
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
    path.chmod(READABLE_FILE)
    # The tokens must reach the disk before the description, which says that they are whole.
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
    """Yield the ids of each block in order; threads encode several blocks at once."""
    if isinstance(tokenizer, WordTokenizer):
        blocks = whole_words(blocks)  # a word that is cut would get other ids
    num_threads = min(THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(num_threads) as pool:
        # `pool.map` reads all blocks that it gets into memory, so that it gets only one for each
        # thread at a time.
        while texts := list(islice(blocks, num_threads)):
            yield from pool.map(tokenizer.encode_narrow, texts)


def _splits_of_texts(
    tokens: Tokens,
    ends: Sequence[int],
    corpus: CorpusText,
    tokenizer: Tokenizer,
    config: DataConfig,
) -> dict[str, tuple[int, int]]:
    """Return where each split begins and ends in the tokens of the corpus and the held-out texts.

    Args:
        ends: for each text the index after its last token; the corpus is the first text.
    """
    if isinstance(corpus, ItemCorpus):
        # The corpus itself has no items for splits that are held-out texts.
        splits = _splits_of_items(tokens[: ends[0]], tokenizer, corpus, config)
    elif "val" in corpus.held_out:
        # The whole corpus is for training, since validation has a text of its own.
        splits = {"train": (0, ends[0])}
    else:
        splits = _splits(tokens[: ends[0]], tokenizer, config)
    # Each held-out text begins where the text before it ends; the first one follows the corpus.
    for split, (begin, end) in zip(corpus.held_out, pairwise(ends), strict=True):
        splits[split] = (begin, end)
    return splits


def _splits(tokens: Tokens, tokenizer: Tokenizer, config: DataConfig) -> dict[str, tuple[int, int]]:
    """Return where each split of one text begins and ends, in tokens.

    Byte pairs and words are split at fractions of the characters, as characters are, so that their
    losses in bits per character can be compared. Bytes are split at fractions of the bytes.
    """
    length = len(tokens)
    # Below, sizes and ends are numbers of tokens, or of characters if these are counted.
    counts_characters = config.tokenizer in ("bpe", "word")
    total = length
    if counts_characters:
        total = sum(tokenizer.count_chars(piece) for piece in in_pieces(tokens))
    test_size = round(total * config.test_fraction)
    if test_size > 0:
        val_size = round(total * config.val_fraction)
    else:
        # The training split is rounded down as in nanoGPT, so that losses can be compared.
        val_size = total - int(total * (1 - config.val_fraction))
    end_of_train = total - test_size - val_size
    end_of_val = total - test_size
    if counts_characters:
        end_of_train = _token_at(tokens, tokenizer, end_of_train)
        end_of_val = _token_at(tokens, tokenizer, end_of_val)
    splits = {"train": (0, end_of_train)}
    if config.test_fraction == 0:
        splits["val"] = (end_of_train, length)
    else:
        # In a very short text the test split may be empty.
        splits["val"] = (end_of_train, end_of_val)
        splits["test"] = (end_of_val, length)
    return splits


def _splits_of_items(
    tokens: Tokens, tokenizer: Tokenizer, corpus: ItemCorpus, config: DataConfig
) -> dict[str, tuple[int, int]]:
    """Return where each split of a corpus of items begins and ends, in tokens."""
    spans = item_spans(tokens, item_ids(config.items, tokenizer).end)
    splits: dict[str, tuple[int, int]] = {}
    first = 0
    for name, num_items in zip(("train", "val", "test"), corpus.split_sizes, strict=True):
        # A split reaches from the beginning of its first item to the end of its last item.
        if num_items > 0:
            last = first + num_items - 1
            splits[name] = (int(spans[first, 0]), int(spans[last, 1]))
        first += num_items
    return splits


def _token_at(tokens: Tokens, tokenizer: Tokenizer, character: int) -> int:
    """Return the index of the token in which a character begins.

    Args:
        character: index of the character in the text.
    """
    num_tokens_before = 0
    index_in_piece = character
    for piece in in_pieces(tokens):
        num_chars = tokenizer.count_chars(piece)
        if index_in_piece < num_chars:
            return num_tokens_before + _token_in_piece(piece, tokenizer, index_in_piece)
        index_in_piece -= num_chars
        num_tokens_before += len(piece)
    return num_tokens_before  # the end of the text, where no character begins


def _token_in_piece(piece: Tokens, tokenizer: Tokenizer, character: int) -> int:
    """Return the index of the token of a piece in which a character begins.

    Bisection is used, since each count of characters takes a time linear in the tokens.
    """
    lengths = range(len(piece) + 1)
    # The smallest number of tokens, from the beginning of the piece, in which more than `character`
    # characters begin.
    num_tokens = bisect_right(
        lengths, character, key=lambda length: tokenizer.count_chars(piece[:length])
    )
    return num_tokens - 1  # the character begins in the last of these tokens
