"""Locate a corpus: a named one, files of your own, or a download; the result is files on disk."""

import hashlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpt.config import DataConfig
from gpt.corpora.download import Download, fetch
from gpt.corpora.source_files import SourceFile, classify, find_files, names_several
from gpt.data.tokenizers import require_characters
from gpt.environment import Settings, expand_home
from gpt.errors import DataError
from gpt.files import sha256_of, write_atomic
from gpt.progress import Report

_CHAR_RNN = "karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e"
SHAKESPEARE = Download(
    urls=(
        f"https://raw.githubusercontent.com/{_CHAR_RNN}/data/tinyshakespeare/input.txt",
        "https://raw.githubusercontent.com/jcjohnson/torch-rnn/master/data/tiny-shakespeare.txt",
        "https://storage.googleapis.com/download.tensorflow.org/data/shakespeare.txt",
    ),
    filename="tinyshakespeare.txt",
    sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    max_bytes=2 * 1_115_394,
)


@dataclass(frozen=True)
class Archive:
    """A corpus of 100,000,000 bytes, as a zip with one file; `md5` is of that file, as its author publishes it."""

    download: Download
    md5: str


def _mahoney(name: str, sha256: str, md5: str) -> Archive:
    urls = (f"https://mattmahoney.net/dc/{name}.zip", f"https://data.deepai.org/{name}.zip")
    return Archive(Download(urls, f"{name}.zip", sha256, max_bytes=40_000_000), md5)


ARCHIVES = {
    "text8": _mahoney(
        "text8",
        "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
        "3bea1919949baf155f99411df5fada7e",
    ),
    "enwik8": _mahoney(
        "enwik8",
        "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
        "a1fa5ffddb56f4953e226637dabbb36a",
    ),
}
"""Mahoney's text8 and enwik8 (http://mattmahoney.net/dc/textdata.html)."""


def corpus_files(config: DataConfig, settings: Settings, report: Report) -> list[SourceFile]:
    """Return the files of the corpus in order, after downloading or writing it if necessary.

    Raises:
        ConfigError, DataError: see `locate_corpus`; or `data.path` names files of several kinds or none, or
            `data.sha256` is given for several.
    """
    path = None if config.path is None else expand_home(config.path, "data.path")
    if path is None or not names_several(path):
        files = [classify(locate_corpus(config, settings, report))]
        _tell_without_effect(files, config, report)
        return files
    files = find_files(path, report)
    _tell_without_effect(files, config, report)
    if config.sha256 is not None:
        raise DataError(f"data.sha256 is the hash of one file, and {path} names {len(files)}; leave it out")
    size = sum(file.path.stat().st_size for file in files)
    if size == 0:
        raise DataError(f"all files of {path} are empty")
    _check_size(path, size, config.max_bytes)
    return files


def _tell_without_effect(files: list[SourceFile], config: DataConfig, report: Report) -> None:
    """Say which options only tables, or only several documents, would read."""
    fields, text = type(config).model_fields, all(file.kind == "text" for file in files)
    for key, idle in (("column", text), ("separator", text and len(files) == 1)):
        if idle and getattr(config, key) != fields[key].default:
            what = "is text" if len(files) == 1 else "and the others are text"
            report(f"data.{key}={getattr(config, key)!r} has no effect: {files[0].path} {what}")


def locate_corpus(config: DataConfig, settings: Settings, report: Report) -> Path:
    """Return the path of the corpus, after downloading or writing it if necessary.

    Raises:
        ConfigError: `data.path` or `data.dir` begins with the ~ of a user who has no home folder.
        DataError: the file is missing, empty, too large or has another hash; the download failed or is
            not allowed; the data folder cannot be written.
    """
    match config.source:
        case "shakespeare":
            path = _download(SHAKESPEARE, config, settings, report)
        case "text8" | "enwik8":
            path = _locate_archive(config.source, config, settings, report)
        case "pydocs":
            path = store_text(pydocs_text(), expand_home(config.dir, "data.dir"), "pydocs")
        case "file":
            assert config.path is not None
            path = _existing_file(expand_home(config.path, "data.path"), config.sha256)
        case "url":
            assert config.url is not None
            name = f"download-{hashlib.sha256(config.url.encode()).hexdigest()[:16]}.txt"  # one file for each address
            path = _download(Download((config.url,), name, config.sha256, config.max_bytes), config, settings, report)
    _check_size(path, path.stat().st_size, config.max_bytes)
    return path


def _locate_archive(name: str, config: DataConfig, settings: Settings, report: Report) -> Path:
    """Return the path of the unpacked file if it is there, else of the zip, which is read as it is."""
    for folder in (settings.data_dir, expand_home(config.dir, "data.dir")):
        if folder is not None and (folder / name).is_file():
            with (folder / name).open("rb") as file:
                md5 = hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False)).hexdigest()
            if md5 != ARCHIVES[name].md5:
                raise DataError(f"{folder / name} has md5 {md5}, and {name} has {ARCHIVES[name].md5}; delete the file")
            return folder / name
    return _download(ARCHIVES[name].download, config, settings, report)


def _download(download: Download, config: DataConfig, settings: Settings, report: Report) -> Path:
    """Return the file in `GPT_DATA_DIR` or `data.dir`; if it is in neither, download it first."""
    folders = [folder for folder in (settings.data_dir, expand_home(config.dir, "data.dir")) if folder is not None]
    folder = next((folder for folder in folders if (folder / download.filename).is_file()), folders[0])
    return fetch(download, folder, offline=settings.offline, report=report)


def pydocs_text() -> str:
    """Return Python's own documentation topics, which ship with every CPython, as one text."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name].strip() for name in sorted(topics)) + "\n"


def store_text(text: str, folder: Path, prefix: str = "text") -> Path:
    """Write a text to a file that is named by its hash, unless it is there; return its path.

    Raises:
        DataError: the text has half of a surrogate pair, or the file cannot be written.
    """
    content = require_characters(text)
    path = folder / f"{prefix}-{hashlib.sha256(content).hexdigest()[:16]}.txt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.is_file():
            write_atomic(path, content)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}; set data.dir to another folder") from None
    return path


def _existing_file(path: Path, sha256: str | None) -> Path:
    if not path.is_file():
        what = "not a regular file" if path.exists() else "no such file"
        raise DataError(f"{path}: {what}; set data.path to a text file")
    try:
        actual = sha256_of(path) if sha256 is not None else None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    if actual != sha256:
        raise DataError(f"{path} has sha256 {actual}, data.sha256 is {sha256}")
    return path


def _check_size(path: Path, size: int, max_bytes: int) -> None:
    if size == 0:
        raise DataError(f"{path} is empty")
    if size > max_bytes:
        raise DataError(
            f"{path} has {size:,} bytes, more than data.max_bytes {max_bytes:,}; raise data.max_bytes to use it"
        )
