"""The files that a corpus consists of: what `data.path` names, in order, and what is in each."""

import glob
import os
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from gpt.errors import DataError

TABLES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
PACKED = {".gz": "gzip", ".zst": "zstd", ".zip": "zip"}


@dataclass(frozen=True)
class SourceFile:
    """One file of a corpus.

    Attributes:
        path: where it is.
        kind: `text`, `jsonl` or `parquet`, by its suffix.
        packing: `gzip`, `zstd`, `zip`, or None where it is not compressed.
    """

    path: Path
    kind: str
    packing: str | None

    @property
    def is_plain(self) -> bool:
        """Return whether the file is the text itself."""
        return self.kind == "text" and self.packing is None


def classify(path: Path) -> SourceFile:
    """Return what the suffixes of a file say about its content."""
    packing = PACKED.get(path.suffix.lower())
    inner = path.with_suffix("") if packing else path
    return SourceFile(path, TABLES.get(inner.suffix.lower(), "text"), packing)


def names_several(path: Path) -> bool:
    """Return whether a `data.path` is a folder or a glob pattern."""
    return path.is_dir() or (not path.exists() and glob.has_magic(str(path)))


def find_files(path: Path) -> list[SourceFile]:
    """Return the files below a folder, or those that a glob pattern matches, sorted by path.

    Files and folders whose names begin with a dot are left out.

    Raises:
        DataError: there are none, or some are text and others are tables.
    """
    found = sorted(_below(path) if path.is_dir() else _matching(path), key=lambda file: file.as_posix())
    if not found:
        where = f"{path} is a folder without files" if path.is_dir() else f"{path} matches no files"
        raise DataError(f"{where}; set data.path to a text file, a folder of them or a glob pattern")
    for each in found:
        if any(unicodedata.category(char) == "Cc" for char in str(each)):
            raise DataError(f"{path} has a file with a control character in its name, {str(each)!r}; rename it")
    files = [classify(file) for file in found]
    first = files[0]
    for file in files:
        if (file.kind == "text") != (first.kind == "text"):
            raise DataError(
                f"{path} mixes text and tables: {first.path} is {first.kind}, {file.path} is {file.kind}; choose one "
                "kind with a glob pattern, for example data.path='folder/**/*.parquet'"
            )
    return files


def _below(folder: Path) -> list[Path]:
    found = []
    for name, folders, files in os.walk(folder):
        folders[:] = [below for below in folders if not below.startswith(".")]
        found += [Path(name, file) for file in files if not file.startswith(".") and Path(name, file).is_file()]
    return found


def _matching(pattern: Path) -> list[Path]:
    return [Path(name) for name in glob.glob(str(pattern), recursive=True) if Path(name).is_file()]  # noqa: PTH207
