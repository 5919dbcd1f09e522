"""Locate a corpus: a named one, a file, or a download; the result is one file on disk."""

import hashlib
from pathlib import Path

from gpt.config import DataConfig
from gpt.data.download import Download, fetch
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
        case "pydocs":
            path = _write_pydocs(expand_home(config.dir, "data.dir"))
        case "file":
            assert config.path is not None
            path = _existing_file(expand_home(config.path, "data.path"), config.sha256)
        case "url":
            assert config.url is not None
            name = f"download-{hashlib.sha256(config.url.encode()).hexdigest()[:16]}.txt"  # one file for each address
            path = _download(Download((config.url,), name, config.sha256, config.max_bytes), config, settings, report)
    _check_size(path, config.max_bytes)
    return path


def _download(download: Download, config: DataConfig, settings: Settings, report: Report) -> Path:
    """Return the file in `GPT_DATA_DIR` or `data.dir`; if it is in neither, download it first."""
    folders = [folder for folder in (settings.data_dir, expand_home(config.dir, "data.dir")) if folder is not None]
    folder = next((folder for folder in folders if (folder / download.filename).is_file()), folders[0])
    return fetch(download, folder, offline=settings.offline, report=report)


def _write_pydocs(folder: Path) -> Path:
    """Write Python's own documentation topics, which ship with every CPython, as one text."""
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name].strip() for name in sorted(topics)) + "\n"
    content = text.encode("utf-8")
    path = folder / f"pydocs-{hashlib.sha256(content).hexdigest()[:16]}.txt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.is_file():
            write_atomic(path, content)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}; set data.dir to another folder") from None
    return path


def _existing_file(path: Path, sha256: str | None) -> Path:
    if path.is_dir():
        raise DataError(f"{path} is a folder; data.path must be one text file")
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


def _check_size(path: Path, max_bytes: int) -> None:
    size = path.stat().st_size
    if size == 0:
        raise DataError(f"{path} is empty")
    if size > max_bytes:
        raise DataError(
            f"{path} has {size:,} bytes, more than data.max_bytes {max_bytes:,}; raise data.max_bytes to use it"
        )
