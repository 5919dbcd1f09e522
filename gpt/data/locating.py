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

NAME_DIGITS = 16
"""Hexadecimal digits of a hash in a file's name: 64 bits tell apart all texts of a person."""
_CHAR_RNN = "karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e"
"""The repository at a fixed commit, so that the file cannot change."""
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
"""Tiny Shakespeare (Karpathy 2015, char-rnn): all mirrors have the same bytes."""


MAX_BYTES_PER_CHARACTER = 4
"""Bytes of the longest characters in UTF-8."""


def corpus_files(config: DataConfig, settings: Settings, report: Report = silent) -> list[Path]:
    """Return the files of the corpus in order, after downloading or writing it if necessary.

    Raises:
        DataError: there are no such files, or they are empty or too large.
    """
    match config.source:
        case "shakespeare":
            files = [_shakespeare(config, settings, report)]
        case "pydocs":
            files = [store_text(pydocs_text(), expand_home(config.dir, "data.dir"), "pydocs")]
        case "file":
            assert isinstance(config.path, str)  # several paths: see `gpt.data.preparation`
            files = find_files(expand_home(config.path, "data.path"), report)
    _check_size(files, config.path or files[0])
    return files


def held_out_files(config: DataConfig, report: Report = silent) -> dict[str, list[Path]]:
    """Return the files of each split that has a text of its own: `val`, `test`, both or none.

    Raises:
        DataError: there are no such files, or they are empty or too large.
    """
    files: dict[str, list[Path]] = {}
    for split, path in (("val", config.val_path), ("test", config.test_path)):
        if path is None:
            continue
        key = f"data.{split}_path"
        files[split] = find_files(expand_home(path, key), report, key)
        _check_size(files[split], path)
    return files


def _check_size(files: Sequence[Path], name: object) -> None:
    """Raise DataError unless some files have the size of a corpus; `name` is that of all."""
    size = sum(file.stat().st_size for file in files)
    # characters are counted when the text is read; this spares reading a file that is far too large
    most = MAX_BYTES_PER_CHARACTER * MAX_CHARACTERS
    if not 0 < size <= most:
        raise DataError(f"{name} has {size:,} bytes; a corpus has 1 to {most:,}")


def _shakespeare(config: DataConfig, settings: Settings, report: Report) -> Path:
    """Return the file of Tiny Shakespeare, in `GPT_DATA_DIR` or `data.dir`.

    If neither folder has it, it is downloaded into `GPT_DATA_DIR`, or into `data.dir` if that
    variable is not set.
    """
    folders = [expand_home(config.dir, "data.dir")]
    if settings.data_dir is not None:
        folders.insert(0, settings.data_dir)
    with_file = (folder for folder in folders if (folder / SHAKESPEARE.filename).is_file())
    folder = next(with_file, folders[0])
    return fetch(SHAKESPEARE, folder, offline=settings.offline, report=report)


def pydocs_text() -> str:
    """Return Python's own documentation topics, which ship with every CPython, as one text."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name].strip() for name in sorted(topics)) + "\n"


def store_text(text: str, folder: Path, prefix: str = "text") -> Path:
    """Write a text to a file that is named by its hash, unless it is there; return its path.

    The same text is written once, and another one cannot take its place.
    """
    content = require_characters(text)
    digest = hashlib.sha256(content).hexdigest()[:NAME_DIGITS]
    path = folder / f"{prefix}-{digest}.txt"
    try:
        make_folder(folder)
        if not path.is_file():
            write_atomic(path, content)
    except OSError as error:
        raise DataError(
            f"cannot write {path}: {error.strerror}; set data.dir to another folder"
        ) from None
    return path


def find_files(path: Path, report: Report = silent, key: str = "data.path") -> list[Path]:
    """Return a file, the files below a folder, or those that match a pattern, sorted by path.

    Below a folder, names that begin with a dot are left out. Links that are found there or by a
    pattern are not followed, since they may lead anywhere, and `report` names them; the path itself
    may be one.

    Args:
        key: the key of the configuration that gives the path, for messages.

    Raises:
        DataError: the path names no files, or something that is no regular file.
    """
    # A person may give the text itself where a path is expected.
    text_message = text_for_path(path)
    if text_message:
        raise DataError(
            f"{text_message}; save it in a file and give that, or pass text= to gpt.train"
        )
    if path.is_dir():
        found, links = _separate_links(_below(path), path)
    elif not path.exists() and glob.has_magic(str(path)):
        matches = [Path(name) for name in glob.glob(str(path), recursive=True)]  # noqa: PTH207
        files = [match for match in matches if not match.is_dir()]
        found, links = _separate_links(files, _fixed_part(path))
    else:
        found, links = [path], []
    remedy = f"set {key} to a text file, a folder of them or a glob pattern"
    note_on_links = ""
    if links:
        note_on_links = (
            f"links are not followed ({_listed(links)}): to read one, name it itself in {key}"
        )
    if not found:
        # Links that were left out are the likeliest reason for finding nothing.
        hint = note_on_links or remedy
        raise DataError(f"{path} names no files; {hint}{_bracket_hint(path)}")
    if note_on_links:
        report(f"{path}: {note_on_links}")
    for file in found:
        if not file.is_file():
            problem = "not a regular file" if file.exists() else "no such file"
            raise DataError(f"{file}: {problem}; {remedy}")
        # A control character in a name would steer the terminal that shows a message with it.
        if any(unicodedata.category(char) == "Cc" for char in str(file)):
            raise DataError(
                f"{path} has a file with a control character in its name, {str(file)!r}; rename it"
            )
    return found


def _bracket_hint(path: Path) -> str:
    """Return what to write if the brackets of a pattern are part of a file's name."""
    escaped = str(path).replace("[", "[[]")  # a set of one character, the bracket
    if escaped == str(path):
        return ""  # the path has no brackets
    return f"; if its brackets are part of a name, write {escaped}"


def _below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, and the links to folders, which are not walked into."""
    for name, folders, files in os.walk(folder, onerror=_refuse_folder):
        # `os.walk` descends into the folders that are left in its own list.
        folders[:] = [each for each in folders if not each.startswith(".")]
        for file in files:
            if not file.startswith("."):
                yield Path(name, file)
        for each in folders:
            if Path(name, each).is_symlink():
                yield Path(name, each)


def _refuse_folder(error: OSError) -> None:
    """Raise DataError where `os.walk` would pass over a folder that cannot be listed."""
    raise DataError(f"cannot list {error.filename}: {error.strerror}")


def _separate_links(paths: Iterable[Path], top: Path) -> tuple[list[Path], list[Path]]:
    """Return the paths below `top` that lead through no link, and those that do, both sorted.

    A link to nothing counts as found, so that its message says that there is no such file.
    """
    found: list[Path] = []
    links: list[Path] = []
    for path in sorted(paths, key=Path.as_posix):
        # `top` itself and what is above it may be links: the user has named them.
        below_top = [each for each in (path, *path.parents) if top in each.parents]
        goes_through_link = path.exists() and any(each.is_symlink() for each in below_top)
        if goes_through_link:
            links.append(path)
        else:
            found.append(path)
    return found, links


def _fixed_part(pattern: Path) -> Path:
    """Return the folder that a pattern names before its first part with a special character."""
    for folder in reversed(pattern.parents):  # from the root down
        next_part = pattern.relative_to(folder).parts[0]
        if glob.has_magic(next_part):
            return folder
    raise AssertionError(f"{pattern} is no pattern")


def _listed(paths: Sequence[Path]) -> str:
    """Return the first paths for a message, and how many more there are."""
    listed = ", ".join(quoted(str(path)) for path in paths[:MAX_LISTED])
    more = len(paths) - MAX_LISTED
    return f"{listed} and {more} more" if more > 0 else listed
