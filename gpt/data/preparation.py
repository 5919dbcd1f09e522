"""Prepare a corpus: locate it, and encode it unless that was done before."""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gpt.config import DataConfig
from gpt.data import corpus_text
from gpt.data.corpus_text import CorpusText, build_tokenizer, extend_tokenizer, has_lone_returns
from gpt.data.dataset import META, Dataset, mix, open_dataset
from gpt.data.encoding import encode_into
from gpt.data.locating import corpus_files
from gpt.data.tokenizers import Tokenizer
from gpt.system.environment import Settings, expand_home
from gpt.system.errors import DataError
from gpt.system.files import sha256_of
from gpt.system.progress import Report, announced

FORMAT = 1
"""Part of the fingerprint in checkpoints; raised when the same text gives other tokens than before."""


def prepare(config: DataConfig, settings: Settings, report: Report, base: Tokenizer | None = None) -> Dataset:
    """Locate the corpus, encode it unless that was done before, and open the token file.

    The tokenizer is `base` with the characters that it lacks; None: one that is built from the corpus.
    """
    if isinstance(config.path, tuple | dict):
        return _prepare_several(config, settings, report, base)
    with announced(report, "looking for the corpus, and hashing it where its hash is known"):
        corpus = CorpusText(corpus_files(config, settings, report))
    with announced(report, f"reading {corpus.name}"):
        tokenizer = None if base is None else extend_tokenizer(base, corpus)
        folder = expand_home(config.dir, "data.dir") / "tokens" / _fingerprint(config, corpus, tokenizer)
    if not (folder / META).is_file():
        encode_into(folder, corpus, config, tokenizer, report)
        report(f"encoded {corpus.name} into {folder}")
    with announced(report, f"verifying {folder}"):
        return open_dataset(folder)


def _prepare_several(config: DataConfig, settings: Settings, report: Report, base: Tokenizer | None) -> Dataset:
    """Prepare each path by itself, with the tokenizer of all of them."""
    assert isinstance(config.path, tuple | dict)
    each_config = [config.model_copy(update={"path": path}) for path in config.path]
    files = [file for each in each_config for file in corpus_files(each, settings)]
    corpus = CorpusText(files)
    with announced(report, f"reading {corpus.name}"):
        tokenizer = build_tokenizer(corpus, config) if base is None else extend_tokenizer(base, corpus)
    datasets = [prepare(each, settings, report, tokenizer) for each in each_config]
    return mix(datasets, [*config.path.values()] if isinstance(config.path, dict) else None)


def _fingerprint(config: DataConfig, corpus: CorpusText, tokenizer: Tokenizer | None) -> str:
    """Return a hash of what the tokens depend on."""
    try:
        with ThreadPoolExecutor() as pool:
            hashes = list(pool.map(sha256_of, corpus.files))
            returns = any(pool.map(has_lone_returns, corpus.files))
    except OSError as error:
        raise DataError(f"cannot read {error.filename or corpus.name}: {error.strerror}") from None
    # before version 2 of the format, a CR without LF was a character: other texts have the same tokens as before
    parts: list[Any] = [FORMAT + 1 if returns else FORMAT, corpus_text.BLOCK, hashes]
    parts += [config.tokenizer, config.val_fraction, config.test_fraction]
    if tokenizer is not None:
        parts.append(tokenizer.to_dict())
    elif config.tokenizer == "bpe":
        parts.append(config.bpe_vocab_size)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
