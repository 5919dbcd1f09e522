"""Write files of which a crash never leaves a part, and read files that others may have made."""

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
"""The same for a file of a few values by name; lists take twenty times their JSON in memory."""
MAX_METRICS_BYTES = 1 << 30
"""The same for the metrics of a run: five million lines."""
MAX_NAME_BYTES = 255
"""Length of the longest file name on common filesystems."""
ABANDONED_SECONDS = 24 * 3600
"""Age of a temporary folder that no process can still be writing into."""


def text_for_path(given: str | Path) -> str | None:
    """Return a message if a text was given in place of a path; None if it may be a path."""
    text = str(given)
    # Not Path.exists, which raises an error for a text that is longer than a file name.
    if os.path.exists(text):  # noqa: PTH110
        return None
    lengths = [len(part.encode(errors="replace")) for part in Path(text).parts]
    is_too_long = max(lengths, default=0) > MAX_NAME_BYTES
    if is_too_long or "\n" in text or "\0" in text:
        return f"'{quoted(text, 40)}' looks like the text itself, not like a path"
    return None


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file, or replace it: readers see the old content or the new one, never a part.

    That holds after an OSError too.
    """
    # A rename would replace a device or a pipe, such as /dev/null, by a file.
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with replacing(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give the path of a temporary file, which replaces `path` when this context ends.

    It is flushed to disk first. After an error in the context, `path` is left as it was.
    """
    with temporary_file(path) as temporary:
        yield temporary
        sync_file(temporary)
        temporary.chmod(0o644)  # other users may read it, whatever the umask
        os.replace(temporary, path)
    sync_folder(path.parent)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, unless they exist.

    With any umask, only the user and the user's group may write into it.
    """
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(mode=0o775, exist_ok=True)


def open_file(path: Path) -> BufferedReader:
    """Open a regular file to read; pipes and devices, which may block or have no end, are refused.

    Every file of a run, a corpus or a cache, which somebody else may have made, is opened here.
    `read_file` and `read_end` also limit how much is read.
    """
    # Opening a pipe would wait for a writer without O_NONBLOCK, which Windows does not have;
    # O_BINARY exists on Windows only.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, flags)
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
    """Return the content of a file as it is now; raise OSError if it exceeds `most_bytes`."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            raise OSError(
                errno.EFBIG, f"it has {size:,} bytes, more than {most_bytes:,}", str(path)
            )
        return file.read(size)


def read_end(path: Path, most_bytes: int) -> bytes:
    """Return the last `most_bytes` bytes of a file, or all of a shorter one."""
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
    """Give the path of a file to write, in a `temporary_folder` beside `path`."""
    with temporary_folder(path) as folder:
        yield folder / path.name


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Make an empty folder beside `path` for this context, under a name that no other process uses.

    It is on the same disk as `path`, so that it can be renamed to it.
    """
    _remove_abandoned(path)
    name = tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        yield Path(name)
    finally:
        try:
            shutil.rmtree(name, ignore_errors=True)
        except (KeyboardInterrupt, SystemExit):
            # A signal interrupted the removal. No second interruption follows: a command raises
            # an exception for the first signal only.
            shutil.rmtree(name, ignore_errors=True)
            raise


def _remove_abandoned(path: Path) -> None:
    """Remove temporary folders that killed processes left beside `path`, a day after they did."""
    for folder in path.parent.glob(f".{glob.escape(path.name)}.????????.tmp"):
        # Another process may remove the same folder at the same time.
        with suppress(OSError):
            last_change = max(each.lstat().st_mtime for each in (folder, *folder.rglob("*")))
            if time.time() - last_change > ABANDONED_SECONDS:
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
