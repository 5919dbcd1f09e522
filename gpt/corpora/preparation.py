"""Prepare a corpus: locate it, and encode it unless that was done before."""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gpt.config import DataConfig
from gpt.corpora.corpus_text import BLOCK, CorpusText
from gpt.corpora.locating import corpus_files
from gpt.corpora.sharding import encode_into, is_whole
from gpt.corpora.vocabulary import extend_tokenizer
from gpt.data.dataset import META, Dataset, open_dataset
from gpt.data.tokenizers import Tokenizer
from gpt.environment import Settings, expand_home
from gpt.errors import DataError
from gpt.files import sha256_of
from gpt.progress import Report, announced

FORMAT = 1
"""Part of the fingerprint in checkpoints; raised when the same text gives other tokens than before."""


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
        force: encode it again.
        base: tokenizer to use; None: one that is built from the corpus.
        add_characters: extend the vocabulary of `base` by the characters that it lacks.

    Raises:
        DataError: the corpus cannot be found, read or encoded, or the data folder cannot be written.
    """
    with announced(report, "looking for the corpus, and hashing it where its hash is known"):
        corpus = CorpusText(corpus_files(config, settings, report), config)
    with announced(report, f"reading {corpus.name}"):
        tokenizer = None if base is None else extend_tokenizer(base, corpus, add_characters)
        folder = expand_home(config.dir, "data.dir") / "tokens" / _fingerprint(config, corpus, tokenizer)
    if force or not (folder / META).is_file():
        encode_into(folder, corpus, config, tokenizer, report, force)
        is_changed = corpus.has_crlf and config.newlines == "lf"
        ends = "; its CRLF line ends are read as LF, data.newlines=keep learns them" if is_changed else ""
        report(f"encoded {corpus.name} into {folder}{ends}")
    with announced(report, f"verifying {folder}"):
        return open_dataset(folder)


def _fingerprint(config: DataConfig, corpus: CorpusText, tokenizer: Tokenizer | None) -> str:
    """Return a hash of what the tokens depend on; of one text file, it is the same with and without shards."""
    with ThreadPoolExecutor() as pool:
        hashes = list(pool.map(_sha256, [file.path for file in corpus.files]))
    is_plain = len(hashes) == 1 and corpus.files[0].is_plain
    content = hashes[0] if is_plain else [[file.kind, sha] for file, sha in zip(corpus.files, hashes, strict=True)]
    parts: list[Any] = [FORMAT, content, config.tokenizer, config.newlines, config.val_fraction]
    if not is_plain:
        parts += [config.separator, config.column]
    if config.test_fraction > 0:
        parts.append({"test": config.test_fraction})
    if config.tokenizer == "bpe" and not is_whole(corpus, config):
        parts.append({"block": BLOCK})  # a word that two blocks share is two words
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
