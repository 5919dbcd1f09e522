"""Write files so that a crash, a full disk or a second process never leaves half a file; read those of others."""

import errno
import glob
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from gpt.system.errors import quoted

MAX_JSON_BYTES = 128 << 20
"""Size of the largest JSON file that is read: tokenizers of large vocabularies have 40 MB."""
MAX_SMALL_JSON_BYTES = 1 << 20
"""The same for one that holds a few values by name; lists take twenty times their JSON in memory."""
MAX_METRICS_BYTES = 1 << 30
"""The same for the metrics of a run: five million lines."""
MAX_NAME_BYTES = 255
"""Length of the longest name of a file."""
ABANDONED_SECONDS = 24 * 3600
"""Age of a temporary folder that no process can still be writing into."""


def text_for_path(given: str | Path) -> str | None:
    """Return what to say of a text that was given in place of a path, shortened; None: it is a path, or may be one."""
    text = str(given)
    if os.path.exists(text):  # noqa: PTH110  # unlike Path.exists, for a text longer than a file's name too
        return None
    is_too_long = any(len(part.encode(errors="replace")) > MAX_NAME_BYTES for part in Path(text).parts)
    if is_too_long or "\n" in text or "\0" in text:
        return f"'{quoted(text, 40)}' looks like the text itself, not like a path"
    return None


def write_atomic(path: Path, content: bytes) -> None:
    """Replace `path` by `content`: readers see the old file or the new one, never a part, also after an OSError."""
    if path.exists() and not path.is_file() and not path.is_dir():  # which a rename would replace
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with replacing(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Name a file to write that takes the place of `path`, flushed to disk, when the context ends without an error."""
    with temporary_file(path) as temporary:
        yield temporary
        sync_file(temporary)
        temporary.chmod(0o644)
        os.replace(temporary, path)
    sync_folder(path.parent)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, unless they are there; whatever the umask, not everybody may write into it."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(mode=0o775, exist_ok=True)


def open_file(path: Path) -> BufferedReader:
    """Open a file to read that somebody else may have made: no pipe or device, which may wait or have no end.

    Every file of a run, a corpus or a cache is opened here; `read_file` and `read_end` also bound what is read.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))  # a pipe may wait
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "is a folder", str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_file(path: Path, most_bytes: int) -> bytes:
    """Return the content that a file has at this moment; OSError: it is longer than `most_bytes`."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, more than {most_bytes:,}", str(path))
        return file.read(size)


def read_end(path: Path, most_bytes: int) -> bytes:
    """Return the last bytes of a file, or all where it has no more than `most_bytes`."""
    with open_file(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - most_bytes))
        return file.read(most_bytes)


def parse_json(content: str | bytes) -> Any:
    """Return the value of JSON that somebody else may have made, or raise ValueError."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


@contextmanager
def temporary_file(path: Path) -> Iterator[Path]:
    """Name a file in a `temporary_folder` beside `path`."""
    with temporary_folder(path) as folder:
        yield folder / path.name


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Make an empty folder beside `path`, on the same disk, under a name of this process; in the end it is gone."""
    _remove_abandoned(path)
    name = tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        yield Path(name)
    finally:
        try:
            shutil.rmtree(name, ignore_errors=True)
        except (KeyboardInterrupt, SystemExit):  # a command raises one for the first signal only
            shutil.rmtree(name, ignore_errors=True)
            raise


def _remove_abandoned(path: Path) -> None:
    """Remove what processes that were killed left beside `path`, if nothing in it has changed for a day."""
    for folder in path.parent.glob(f".{glob.escape(path.name)}.????????.tmp"):
        with suppress(OSError):  # another process may do the same
            if time.time() - max(each.lstat().st_mtime for each in (folder, *folder.rglob("*"))) > ABANDONED_SECONDS:
                shutil.rmtree(folder)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, so that a rename in it survives a power cut."""
    if os.name == "nt":  # Windows cannot open folders
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file(path: Path) -> None:
    """Flush one written file to disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sha256_of(path: Path) -> str:
    """Return the hex sha256 of a file, read in pieces."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
