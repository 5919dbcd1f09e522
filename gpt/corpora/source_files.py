"""The files that a corpus consists of: what `data.path` names, in order, and what is in each."""

import glob
import os
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpt.errors import DataError
from gpt.progress import Report, silent

TABLES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
GENERATED = {"__pycache__", "node_modules"}
"""Folders of files that other programs write beside code."""
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
    packing = PACKED.get(path.suffix.lower())
    inner = path.with_suffix("") if packing else path
    return SourceFile(path, TABLES.get(inner.suffix.lower(), "text"), packing)


def names_several(path: Path) -> bool:
    """Return whether a `data.path` is a folder or a glob pattern."""
    return path.is_dir() or (not path.exists() and glob.has_magic(str(path)))


def find_files(path: Path, report: Report = silent) -> list[SourceFile]:
    """Return the files below a folder, or those that a glob pattern matches, sorted by path.

    Links are followed, but for those to a folder that they are in. Files and folders whose names begin with a dot are
    left out, and below a folder those of `GENERATED`; there they are counted in a line.

    Raises:
        DataError: there are none, some are text and others are tables, one cannot be listed, or is a link to nothing
            or to a folder that holds `path`.
    """
    found = sorted(_below(path, report) if path.is_dir() else _matching(path), key=lambda file: file.as_posix())
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


def _below(folder: Path, report: Report) -> list[Path]:
    found, left_out = [], Counter[str]()
    for name, folders, files in os.walk(folder, onerror=_refuse, followlinks=True):
        left_out.update(filter(None, map(_rule_against, (*folders, *files))))
        folders[:] = [each for each in folders if not _rule_against(each) and not _leads_back(Path(name, each), folder)]
        found += [Path(name, each) for each in files if not _rule_against(each)]
    if left_out:
        report(f"{folder}: left out " + ", ".join(f"{rule} ({count:,})" for rule, count in sorted(left_out.items())))
    return _only_files(found)


def _rule_against(name: str) -> str | None:
    """Return what is said of a file or folder that is left out by its name; None: it is not."""
    if name.startswith("."):
        return "names that begin with a dot"
    return name if name in GENERATED else None


def _matching(pattern: Path) -> list[Path]:
    return _only_files(Path(name) for name in glob.glob(str(pattern), recursive=True))  # noqa: PTH207


def _only_files(found: Iterable[Path]) -> list[Path]:
    files = [path for path in found if not path.is_dir()]
    for path in files:
        if not path.is_file():
            what = "not a regular file" if path.exists() else "a link to nothing"
            raise DataError(f"{path} is {what}; remove it, or leave it out with a glob pattern")
    return files


def _leads_back(path: Path, root: Path) -> bool:
    """Return whether a folder is a link to one that it is in, whose files are found without it.

    Raises:
        DataError: that folder is not below `root`, so that they are not.
    """
    if not path.is_symlink() or path.resolve() not in path.parent.resolve().joinpath("x").parents:
        return False
    if root.resolve() not in path.resolve().joinpath("x").parents:
        raise DataError(f"{path} is a link to {path.resolve()}, a folder that holds {root}; remove it")
    return True


def _refuse(error: OSError) -> None:
    raise DataError(f"cannot list {error.filename}: {error.strerror}")
