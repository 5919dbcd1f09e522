"""Prepare a corpus: locate it, and encode it unless that was done before."""

import hashlib
import json
import shutil
from pathlib import Path

from gpt.config import DataConfig
from gpt.data.corpora import locate_corpus
from gpt.data.dataset import META, Dataset, open_dataset
from gpt.data.encoding import encode_into
from gpt.data.tokenizers import Tokenizer
from gpt.data.vocabulary import extend_tokenizer
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
        config: what to read.
        settings: the environment's settings.
        report: takes lines for the user.
        force: encode it again.
        base: tokenizer to use; None: one that is built from the corpus.
        add_characters: extend the vocabulary of `base` by the characters that it lacks.

    Raises:
        DataError: the corpus cannot be found, read or encoded, or the data folder cannot be written.
    """
    source = locate_corpus(config, settings, report)
    with announced(report, f"reading {source}"):
        tokenizer = None if base is None else extend_tokenizer(base, source, config, add_characters)
        folder = expand_home(config.dir, "data.dir") / "tokens" / _fingerprint(config, source, tokenizer)
    if folder.exists() and (force or not (folder / META).is_file()):
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise DataError(f"cannot delete {folder}: {error.strerror}") from None
    if not folder.exists():
        with announced(report, f"encoding {source}, {source.stat().st_size / 1e6:,.0f} MB"):
            encode_into(folder, source, config, tokenizer)
        report(f"encoded {source} into {folder}")
    with announced(report, f"verifying {folder}"):
        return open_dataset(folder)


def _fingerprint(config: DataConfig, source: Path, tokenizer: Tokenizer | None) -> str:
    content = _sha256(source)
    parts = [FORMAT, content, config.tokenizer, config.newlines, config.val_fraction]
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
