"""Prepare a corpus: locate its files, and encode them unless that was done before."""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gpt.config import DataConfig
from gpt.data import corpus_text
from gpt.data.corpus_text import CorpusText, build_tokenizer, extend_tokenizer, has_lone_returns
from gpt.data.dataset import META, Dataset, LongAnswerError, join_texts, open_dataset
from gpt.data.encoding import encode_into
from gpt.data.held_out import find_held_out
from gpt.data.items import ItemCorpus
from gpt.data.locating import corpus_files, held_out_files
from gpt.data.pairs import find_pair
from gpt.data.tokenizers import Tokenizer
from gpt.system.environment import Settings, expand_home
from gpt.system.errors import DataError
from gpt.system.files import sha256_of
from gpt.system.progress import Report, announce_if_slow

FORMAT = 1
"""A part of every fingerprint.

A version of this package that makes other tokens of the same text has another number.
"""
FORMAT_WITH_LONE_RETURNS = 2
"""The format of texts with a CR that no LF follows, which format 1 read as a character."""
FINGERPRINT_DIGITS = 16
"""Hexadecimal digits of a fingerprint, which names a folder.

They are 64 bits: only among billions of corpora would two have the same fingerprint by chance.
"""


def prepare(
    config: DataConfig, settings: Settings, report: Report, base: Tokenizer | None = None
) -> Dataset:
    """Locate the corpus, encode it unless that was done before, and open the token file.

    Args:
        base: tokenizer of the model that is trained further, to which the characters that it lacks
            are added. None means that the tokenizer is built from the corpus.
    """
    if isinstance(config.path, tuple):
        return _prepare_several(config, settings, report, base)
    corpus: CorpusText
    with announce_if_slow(report, "looking for the corpus, and hashing it where its hash is known"):
        files = corpus_files(config, settings, report)
        held_out = find_held_out(config, files, report)
        if config.items == "none":
            corpus = CorpusText(files, held_out)
        else:
            corpus = ItemCorpus(files, config, held_out)
    with announce_if_slow(report, f"reading {corpus.name}"):
        tokenizer = None if base is None else extend_tokenizer(base, corpus)
        fingerprint = _fingerprint(config, corpus, tokenizer)
    folder = expand_home(config.dir, "data.dir") / "tokens" / fingerprint
    # `META` is written last, so that a folder that has it is complete.
    if not (folder / META).is_file():
        encode_into(folder, corpus, config, tokenizer, report)
        report(f"encoded {corpus.name} into {folder}")
    with announce_if_slow(report, f"verifying {folder}"):
        return open_dataset(folder)


def check_length(dataset: Dataset, config: DataConfig, settings: Settings, block_size: int) -> None:
    """Raise DataError unless the splits of a corpus fit windows of `block_size`.

    An answer that is too long is named by its file and line, if a file still has it.
    """
    try:
        dataset.check_length(block_size)
    except LongAnswerError as error:
        place = _find_answer(error, config, settings)
        if place is None:
            raise  # the error names the answer by its question
        raise error.at(place) from None


def _find_answer(error: LongAnswerError, config: DataConfig, settings: Settings) -> str | None:
    """Return the file and line of the answer that an error is about; None if they are not found."""
    try:
        for files in (corpus_files(config, settings), *held_out_files(config).values()):
            place = find_pair(CorpusText(files), error.text)
            if place is not None:
                return place
    except (DataError, OSError):
        # The files may have been changed or removed since they were encoded, and are not needed any
        # more. The user has to learn of the long answer, and not of them.
        pass
    return None


def _prepare_several(
    config: DataConfig, settings: Settings, report: Report, base: Tokenizer | None
) -> Dataset:
    """Prepare each path with its own splits, but with one tokenizer for all of them.

    Args:
        base: as in `prepare`.
    """
    assert isinstance(config.path, tuple)
    config_of_each = [config.model_copy(update={"path": path}) for path in config.path]
    files: list[Path] = []
    for each in config_of_each:
        # Not with `report`, since `prepare` reports the same about each path below.
        files += corpus_files(each, settings)
    corpus = CorpusText(files)
    with announce_if_slow(report, f"reading {corpus.name}"):
        tokenizer = _tokenizer_of_all(corpus, config, base)
    # The tokenizer has the characters of all paths, so that `prepare` has none to add.
    return join_texts([prepare(each, settings, report, tokenizer) for each in config_of_each])


def _tokenizer_of_all(corpus: CorpusText, config: DataConfig, base: Tokenizer | None) -> Tokenizer:
    """Return a tokenizer that has every character of a corpus, with the ids of `base` if given."""
    if base is None:
        return build_tokenizer(corpus, config)
    return extend_tokenizer(base, corpus)


def _fingerprint(config: DataConfig, corpus: CorpusText, tokenizer: Tokenizer | None) -> str:
    """Return a hash of everything that the tokens depend on."""
    held_out_hashes: dict[str, list[str]] = {}
    all_files = list(corpus.files)
    for text in corpus.held_out.values():
        all_files += text.files
    try:
        # Threads hash several files at once, since hashing releases Python's global lock.
        with ThreadPoolExecutor() as pool:
            hashes = list(pool.map(sha256_of, corpus.files))
            has_returns = any(pool.map(has_lone_returns, all_files))
            for split, text in corpus.held_out.items():
                held_out_hashes[split] = list(pool.map(sha256_of, text.files))
    except OSError as error:
        name = error.filename or corpus.name
        raise DataError(f"cannot read {name}: {error.strerror}") from None
    # Texts without a lone CR have the same tokens in both formats, and keep their token files.
    version = FORMAT_WITH_LONE_RETURNS if has_returns else FORMAT
    # Texts are encoded in blocks. Their size changes the tokens, since no token of byte pairs
    # crosses the end of a block.
    parts: list[Any] = [version, corpus_text.BLOCK, hashes]
    parts += [config.tokenizer, config.val_fraction, config.test_fraction]
    # Options that are not used add no part, so that they did not change any fingerprint when they
    # were introduced.
    if config.items != "none":
        parts += ["items", config.items]
    if held_out_hashes:
        # Only a held-out text can have unknown characters: those of the corpus are the vocabulary.
        parts += [held_out_hashes, config.unknown]
    if tokenizer is not None:
        parts.append(tokenizer.to_dict())
    elif config.tokenizer == "bpe":
        parts.append(config.bpe_vocab_size)
    elif config.tokenizer == "word":
        parts.append(config.word_vocab_size)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:FINGERPRINT_DIGITS]
