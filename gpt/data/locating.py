"""Locate the files of a corpus, which is a named one or files of the user."""

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
"""Hexadecimal digits of a hash in a file's name: 64 bits distinguish all texts of a person."""
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
"""Bytes of the longest character in UTF-8."""


def corpus_files(config: DataConfig, settings: Settings, report: Report = silent) -> list[Path]:
    """Return the files of the corpus in order, after downloading or writing it if necessary.

    Raises:
        DataError: the path names no files, or they are empty or too large.
    """
    match config.source:
        case "shakespeare":
            files = [_shakespeare(config, settings, report)]
        case "pydocs":
            files = [store_text(pydocs_text(), expand_home(config.dir, "data.dir"), "pydocs")]
        case "file":
            # `gpt.data.preparation` calls this function once for each of several paths.
            assert isinstance(config.path, str)
            files = find_files(expand_home(config.path, "data.path"), report)
    name = config.path or files[0]  # a corpus that is not the user's has no path
    _check_size(files, name)
    return files


def held_out_files(config: DataConfig, report: Report = silent) -> dict[str, list[Path]]:
    """Return the files of `data.val_path` and `data.test_path`, by their splits `val` and `test`.

    A split whose path is not set is left out.

    Raises:
        DataError: a path names no files, or they are empty or too large.
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
    """Raise DataError if files are empty or too large; `name` names them in the message."""
    size = sum(file.stat().st_size for file in files)
    # The limit is one of characters, which are counted only while a text is read. A text of more
    # bytes than so many characters can have is refused before that.
    max_size = MAX_BYTES_PER_CHARACTER * MAX_CHARACTERS
    if not 0 < size <= max_size:
        raise DataError(f"{name} has {size:,} bytes; a corpus has 1 to {max_size:,}")


def _shakespeare(config: DataConfig, settings: Settings, report: Report) -> Path:
    """Return the file of Tiny Shakespeare, in `GPT_DATA_DIR` or `data.dir`.

    If neither folder has it, it is downloaded into `GPT_DATA_DIR`, or into `data.dir` if that
    variable is not set.
    """
    folders = [expand_home(config.dir, "data.dir")]
    if settings.data_dir is not None:
        folders.insert(0, settings.data_dir)
    folders_with_file = [each for each in folders if (each / SHAKESPEARE.filename).is_file()]
    folder = folders_with_file[0] if folders_with_file else folders[0]
    return fetch(SHAKESPEARE, folder, offline=settings.offline, report=report)


def pydocs_text() -> str:
    """Return Python's own documentation topics, which ship with every CPython, as one text."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name].strip() for name in sorted(topics)) + "\n"


def store_text(text: str, folder: Path, prefix: str = "text") -> Path:
    """Write a text to a file that is named by its hash, unless the file exists; return its path.

    The same text is written only once, and another text has another file.
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

    Below a folder, names that begin with a dot are left out. The path itself may be a link, but
    links below a folder or that match a pattern are not followed, since they may lead anywhere;
    `report` names them.

    Args:
        key: the key of the configuration that has the path, for messages.

    Raises:
        DataError: the path names no files, or something other than regular files.
    """
    # A person may give the text itself where a path is expected, and gets a message about that.
    text_message = text_for_path(path)
    if text_message:
        raise DataError(
            f"{text_message}; save it in a file and give that, or pass text= to gpt.train"
        )
    found = [path]
    links: list[Path] = []
    if path.is_dir():
        found, links = _separate_links(_files_below(path), path)
    elif not path.exists() and glob.has_magic(str(path)):
        # A file that exists is read even if its name looks like a pattern. `Path.glob` is not used,
        # since it takes only patterns relative to a folder.
        matches = [Path(name) for name in glob.glob(str(path), recursive=True)]  # noqa: PTH207
        files = [match for match in matches if not match.is_dir()]
        found, links = _separate_links(files, _fixed_part(path))
    remedy = f"set {key} to a text file, a folder of them or a glob pattern"
    note_on_links = ""
    if links:
        note_on_links = (
            f"links are not followed ({_listed(links)}): to read one, name it itself in {key}"
        )
    if not found:
        # If links were left out, they are the likely reason that nothing was found.
        hint = note_on_links or remedy
        raise DataError(f"{path} names no files; {hint}{_bracket_hint(path)}")
    if note_on_links:
        report(f"{path}: {note_on_links}")
    for file in found:
        if not file.is_file():
            problem = "not a regular file" if file.exists() else "no such file"
            raise DataError(f"{file}: {problem}; {remedy}")
        # A control character in a name would control the terminal on which a message shows it.
        if any(unicodedata.category(char) == "Cc" for char in str(file)):
            raise DataError(
                f"{path} has a file with a control character in its name, {str(file)!r}; rename it"
            )
    return found


def _bracket_hint(path: Path) -> str:
    """Return a hint for messages how to write brackets that are no pattern, or an empty text."""
    # In a pattern, "[[]" is a set whose only character is the bracket.
    escaped = str(path).replace("[", "[[]")
    if escaped == str(path):
        return ""  # the path has no brackets
    return f"; if its brackets are part of a name, write {escaped}"


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, and the links to folders, which are not entered."""
    for parent, subfolders, files in os.walk(folder, onerror=_refuse_folder):
        # The list is changed in place, since `os.walk` then descends into the folders left in it.
        subfolders[:] = [each for each in subfolders if not each.startswith(".")]
        for file in files:
            if not file.startswith("."):
                yield Path(parent, file)
        for subfolder in subfolders:
            if Path(parent, subfolder).is_symlink():
                yield Path(parent, subfolder)


def _refuse_folder(error: OSError) -> None:
    """Raise DataError for a folder that cannot be listed, which `os.walk` would skip silently."""
    raise DataError(f"cannot list {error.filename}: {error.strerror}")


def _separate_links(paths: Iterable[Path], top: Path) -> tuple[list[Path], list[Path]]:
    """Return the paths without a link below `top`, and those with one, both sorted.

    A broken link is returned with the paths without a link, so that the caller reports that there
    is no such file.
    """
    found: list[Path] = []
    links: list[Path] = []
    # With slashes in all paths, their order is the same on every system.
    for path in sorted(paths, key=Path.as_posix):
        # `top` and its parents may be links, since the user has named them.
        below_top = [each for each in (path, *path.parents) if top in each.parents]
        has_link = any(each.is_symlink() for each in below_top)
        is_broken = not path.exists()
        if has_link and not is_broken:
            links.append(path)
        else:
            found.append(path)
    return found, links


def _fixed_part(pattern: Path) -> Path:
    """Return the folder before the first name of a pattern that has a special character."""
    for folder in reversed(pattern.parents):  # from the root down
        next_part = pattern.relative_to(folder).parts[0]
        if glob.has_magic(next_part):
            return folder
    raise AssertionError(f"{pattern} is no pattern")


def _listed(paths: Sequence[Path]) -> str:
    """Return a list for a message of the first paths and of the number of the others."""
    listed = ", ".join(quoted(str(path)) for path in paths[:MAX_LISTED])
    num_others = len(paths) - MAX_LISTED
    return f"{listed} and {num_others} more" if num_others > 0 else listed
