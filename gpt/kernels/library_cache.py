"""Compiled libraries on disk, verified before they are loaded.

Loading a truncated library would end the process with a bus error.
"""

import os
import stat
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gpt.files import sha256_of, write_atomic

SUFFIX = ".dll" if sys.platform == "win32" else ".so"


@dataclass(frozen=True)
class CachedLibrary:
    """The place of a library in a folder; the library may be missing.

    `<key>.sha256` has the file's name and checksum, in the format of sha256sum. The file's name includes the checksum,
    so that the named file is complete whichever of two processes writes last.

    Attributes:
        folder: holds the library.
        key: changes with everything the library is built from.
    """

    folder: Path
    key: str

    @property
    def manifest(self) -> Path:
        """Return the path of the file that has its name and checksum."""
        return self.folder / f"{self.key}.sha256"

    @property
    def log(self) -> Path:
        """Return the path of the compiler's messages, which exists only after a failure."""
        return self.folder / f"{self.key}.log"

    def find(self) -> Path | None:
        """Return the library's path; None if it is missing or has changed since it was stored."""
        try:
            checksum, name = self.manifest.read_text(encoding="utf-8").split()
        except (OSError, ValueError):
            return None
        library = self.folder / name
        return library if _has_checksum(library, checksum) else None

    def store(self, built: Path) -> Path:
        """Move a library here and return its path.

        Raises:
            OSError: the disk is full, or the folder cannot be written.
        """
        checksum = sha256_of(built)
        library = self.folder / f"{self.key}-{checksum[:8]}{SUFFIX}"
        if not _has_checksum(library, checksum):  # Windows does not replace a library in use
            os.replace(built, library)
        write_atomic(self.manifest, f"{checksum}  {library.name}\n".encode())
        self.log.unlink(missing_ok=True)
        return library


def _has_checksum(path: Path, checksum: str) -> bool:
    try:
        return sha256_of(path) == checksum
    except OSError:
        return False


def writable_folder(folder: Path) -> Path:
    """Return the folder, or if it cannot be written one of this user's among the temporary files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return _user_temporary_folder()
    return folder if os.access(folder, os.W_OK) else _user_temporary_folder()


def _user_temporary_folder() -> Path:
    """Return this user's temporary folder, so that a library is compiled once; never one that others can write to."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"gpt-kernels-{user}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        is_private = stat.S_ISDIR(status.st_mode) and status.st_uid == user and not status.st_mode & 0o077
    except OSError:
        is_private = False
    return folder if is_private else Path(tempfile.mkdtemp(prefix="gpt-kernels-"))
