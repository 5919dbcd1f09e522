"""Locate a corpus: a named one, or files of your own; the result is files on disk."""

import glob
import hashlib
import os
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gpt.config import DataConfig
from gpt.data.corpus_text import MAX_CHARACTERS
from gpt.data.download import Download, fetch
from gpt.data.tokenizers import MAX_LISTED, require_characters
from gpt.system.environment import Settings, expand_home
from gpt.system.errors import DataError, quoted
from gpt.system.files import make_folder, text_for_path, write_atomic
from gpt.system.progress import Report, silent

_CHAR_RNN = "karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e"
SHAKESPEARE = Download(
    urls=(
        f"https://raw.githubusercontent.com/{_CHAR_RNN}/data/tinyshakespeare/input.txt",
        "https://raw.githubusercontent.com/jcjohnson/torch-rnn/master/data/tiny-shakespeare.txt",
        "https://storage.googleapis.com/download.tensorflow.org/data/shakespeare.txt",
    ),
    filename="tinyshakespeare.txt",
    sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    size=1_115_394,
)


def corpus_files(config: DataConfig, settings: Settings, report: Report = silent) -> list[Path]:
    """Return the files of the corpus in order, after downloading or writing it if necessary."""
    match config.source:
        case "shakespeare":
            files = [_shakespeare(config, settings, report)]
        case "pydocs":
            files = [store_text(pydocs_text(), expand_home(config.dir, "data.dir"), "pydocs")]
        case "file":
            assert isinstance(config.path, str)  # of several, see `gpt.data.preparation`
            files = find_files(expand_home(config.path, "data.path"), report)
    size = sum(file.stat().st_size for file in files)
    if not 0 < size <= 4 * MAX_CHARACTERS:
        raise DataError(f"{config.path or files[0]} has {size:,} bytes; a corpus has 1 to {4 * MAX_CHARACTERS:,}")
    return files


def _shakespeare(config: DataConfig, settings: Settings, report: Report) -> Path:
    """Return Tiny Shakespeare in `GPT_DATA_DIR` or `data.dir`; it is downloaded into the first if neither has it."""
    folders = [folder for folder in (settings.data_dir, expand_home(config.dir, "data.dir")) if folder is not None]
    folder = next((folder for folder in folders if (folder / SHAKESPEARE.filename).is_file()), folders[0])
    return fetch(SHAKESPEARE, folder, offline=settings.offline, report=report)


def pydocs_text() -> str:
    """Return Python's own documentation topics, which ship with every CPython, as one text."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name].strip() for name in sorted(topics)) + "\n"


def store_text(text: str, folder: Path, prefix: str = "text") -> Path:
    """Write a text to a file that is named by its hash, unless it is there; return its path."""
    content = require_characters(text)
    path = folder / f"{prefix}-{hashlib.sha256(content).hexdigest()[:16]}.txt"
    try:
        make_folder(folder)
        if not path.is_file():
            write_atomic(path, content)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}; set data.dir to another folder") from None
    return path


def find_files(path: Path, report: Report = silent) -> list[Path]:
    """Return a file, the files below a folder, or those that a glob pattern matches, sorted by path.

    Below a folder, names that begin with a dot are left out. Links that are found there or by a pattern are not
    followed, since they may lead anywhere, and `report` names them; the path itself may be one.
    """
    if text := text_for_path(path):
        raise DataError(f"{text}; save it in a file and give that, or pass text= to gpt.train")
    if path.is_dir():
        found, links = _apart(_below(path), path)
    elif not path.exists() and glob.has_magic(str(path)):
        matches = map(Path, glob.glob(str(path), recursive=True))  # noqa: PTH207
        found, links = _apart((each for each in matches if not each.is_dir()), _fixed_part(path))
    else:
        found, links = [path], []
    remedy = "set data.path to a text file, a folder of them or a glob pattern"
    left_out = f"links are not followed ({_listed(links)}): to read one, name it itself in data.path" if links else ""
    if not found:
        escaped = str(path).replace("[", "[[]")
        hint = f"; if its brackets are part of a name, write {escaped}" if escaped != str(path) else ""
        raise DataError(f"{path} names no files; {left_out or remedy}{hint}")
    if left_out:
        report(f"{path}: {left_out}")
    for each in found:
        if not each.is_file():
            raise DataError(f"{each}: {'not a regular file' if each.exists() else 'no such file'}; {remedy}")
        if any(unicodedata.category(char) == "Cc" for char in str(each)):
            raise DataError(f"{path} has a file with a control character in its name, {str(each)!r}; rename it")
    return found


def _below(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise DataError(f"cannot list {error.filename}: {error.strerror}")

    for name, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = [each for each in folders if not each.startswith(".")]
        links = [each for each in folders if Path(name, each).is_symlink()]  # which are not walked into
        yield from (Path(name, each) for each in (*files, *links) if not each.startswith("."))


def _apart(paths: Iterable[Path], top: Path) -> tuple[list[Path], list[Path]]:
    """Return what is found below `top` without a link, and by one, both sorted; a link to nothing is no such file."""
    found: list[Path] = []
    links: list[Path] = []
    for path in sorted(paths, key=Path.as_posix):
        by_link = path.exists() and any(each.is_symlink() for each in (path, *path.parents) if top in each.parents)
        (links if by_link else found).append(path)
    return found, links


def _fixed_part(pattern: Path) -> Path:
    """Return the folder that a glob pattern names before its first part with a special character."""
    return next(each for each in reversed(pattern.parents) if glob.has_magic(str(pattern.relative_to(each).parts[0])))


def _listed(paths: Sequence[Path]) -> str:
    more = f" and {len(paths) - MAX_LISTED} more" if len(paths) > MAX_LISTED else ""
    return ", ".join(quoted(str(path)) for path in paths[:MAX_LISTED]) + more
