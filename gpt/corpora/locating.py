"""Locate a corpus: a named one, or files of your own; the result is files on disk."""

import hashlib
import shutil
import zipfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpt.config import DataConfig
from gpt.corpora.corpus_text import MAX_CHARACTERS
from gpt.corpora.download import Download, fetch
from gpt.corpora.source_files import find_files
from gpt.data.tokenizers import require_characters
from gpt.system.environment import Settings, expand_home
from gpt.system.errors import DataError
from gpt.system.files import replacing, write_atomic
from gpt.system.progress import Report

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


def corpus_files(config: DataConfig, settings: Settings, report: Report) -> list[Path]:
    """Return the files of the corpus in order, after downloading or writing it if necessary."""
    match config.source:
        case "shakespeare":
            files = [_download(SHAKESPEARE, config, settings, report)]
        case "text8" | "enwik8":
            files = [_unpacked(config.source, config, settings, report)]
        case "pydocs":
            files = [store_text(pydocs_text(), expand_home(config.dir, "data.dir"), "pydocs")]
        case "file":
            assert config.path is not None
            files = find_files(expand_home(config.path, "data.path"))
    size = sum(file.stat().st_size for file in files)
    if not 0 < size <= 4 * MAX_CHARACTERS:
        raise DataError(f"{config.path or files[0]} has {size:,} bytes; a corpus has 1 to {4 * MAX_CHARACTERS:,}")
    return files


def _unpacked(name: str, config: DataConfig, settings: Settings, report: Report) -> Path:
    """Return the file of an archive, which is unpacked once; its zip is known by hash."""
    archive, own = ARCHIVES[name], expand_home(config.dir, "data.dir")
    for folder in (settings.data_dir, own):
        if folder is not None and (folder / name).is_file():
            with (folder / name).open("rb") as file:
                md5 = hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False)).hexdigest()
            if md5 != archive.md5:
                raise DataError(f"{folder / name} has md5 {md5}, and {name} has {archive.md5}; delete the file")
            return folder / name
    packed = _download(archive.download, config, settings, report)
    try:
        own.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(packed) as zipped, replacing(own / name) as temporary, temporary.open("wb") as file:
            shutil.copyfileobj(zipped.open(zipped.infolist()[0]), file)
    except OSError as error:
        raise DataError(f"cannot write {own / name}: {error.strerror}; set data.dir to another folder") from None
    return own / name


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
    """Write a text to a file that is named by its hash, unless it is there; return its path."""
    content = require_characters(text)
    path = folder / f"{prefix}-{hashlib.sha256(content).hexdigest()[:16]}.txt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.is_file():
            write_atomic(path, content)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}; set data.dir to another folder") from None
    return path
