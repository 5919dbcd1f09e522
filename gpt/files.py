"""Write files so that a crash, a full disk or a second process never leaves half a file."""

import errno
import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path


def write_atomic(path: Path, content: bytes) -> None:
    """Replace `path` by `content`: readers see the old file or the new one, never a part.

    Raises:
        OSError: the folder is missing or unwritable, the disk is full, or `path` is a device or pipe; it is unchanged.
    """
    require_replaceable(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def require_replaceable(path: Path) -> None:
    """Raise OSError where `path` is there and no regular file: a rename would replace a device or a pipe itself."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of new files: it appears whole or not at all.

    Raises:
        OSError: the folder exists, its parent is missing or unwritable, or the disk is full.
    """
    if path.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as temporary:
        folder = Path(temporary) / path.name
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_bytes(content)
            sync_file(folder / name)
        sync_folder(folder)
        folder.rename(path)
    sync_folder(path.parent)


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
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def release_cached_pages(path: Path) -> None:
    """Drop a file's pages from the page cache; they must be on disk already.

    Cached pages are mapped a megabyte at a time, so reading small windows would make most of the file resident.
    """
    if hasattr(os, "posix_fadvise"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
