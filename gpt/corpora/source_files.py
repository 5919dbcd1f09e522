"""The files that a corpus consists of: what `data.path` names, in order."""

import glob
import os
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from gpt.corpora.parquet import is_table
from gpt.system.errors import DataError


def find_files(path: Path) -> list[Path]:
    """Return a file, the files below a folder, or those that a glob pattern matches, sorted by path.

    Below a folder, names that begin with a dot are left out, and links to folders are not followed.
    """
    if path.is_dir():
        found = sorted(_below(path), key=Path.as_posix)
    elif not path.exists() and glob.has_magic(str(path)):
        matches = map(Path, glob.glob(str(path), recursive=True))  # noqa: PTH207
        found = sorted((each for each in matches if not each.is_dir()), key=Path.as_posix)
    else:
        found = [path]
    if not found:
        raise DataError(f"{path} names no files; set data.path to a text file, a folder of them or a glob pattern")
    for each in found:
        if not each.is_file():
            what = "not a regular file" if each.exists() else "no such file"
            raise DataError(f"{each}: {what}; set data.path to a text file, a folder of them or a glob pattern")
        if is_table(each) != is_table(found[0]):
            raise DataError(f"{path} mixes text and Parquet, such as {each}; choose one kind with a glob pattern")
        if any(unicodedata.category(char) == "Cc" for char in str(each)):
            raise DataError(f"{path} has a file with a control character in its name, {str(each)!r}; rename it")
    return found


def _below(folder: Path) -> Iterator[Path]:
    for name, folders, files in os.walk(folder, onerror=_refuse):
        folders[:] = [each for each in folders if not each.startswith(".")]
        yield from (Path(name, each) for each in files if not each.startswith("."))


def _refuse(error: OSError) -> None:
    raise DataError(f"cannot list {error.filename}: {error.strerror}")
