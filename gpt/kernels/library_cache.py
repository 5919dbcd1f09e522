"""Compiled libraries on disk, verified before they are loaded.

Loading a truncated library would end the process with a bus error.
"""

import os
import stat
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gpt.system.files import sha256_of

SUFFIX = ".dll" if sys.platform == "win32" else ".so"
CHECKSUM = 16
"""Digits of a checksum in a file's name."""


@dataclass(frozen=True)
class CachedLibrary:
    """The place of a library in a folder, by a key of everything it is built from; the library may be missing.

    Its file is named by the key and by its checksum, so that of two processes that store different ones neither can
    damage the other's.
    """

    folder: Path
    key: str
    suffix: str = SUFFIX

    @property
    def log(self) -> Path:
        """The file of the compiler's messages when it failed."""
        return self.folder / f"{self.key}.log"

    def files(self) -> list[Path]:
        return sorted(self.folder.glob(f"{self.key}-*{self.suffix}"))

    def find(self) -> Path | None:
        """Return the library's path; None if it is missing or has changed since it was stored."""
        return next(filter(_is_whole, self.files()), None)

    def store(self, built: Path) -> Path:
        """Move a library here and return its path."""
        library = self.folder / f"{self.key}-{sha256_of(built)[:CHECKSUM]}{self.suffix}"
        if not _is_whole(library):  # Windows does not replace a library in use
            built.chmod(0o644)  # linkers leave a temporary file unreadable to others
            os.replace(built, library)
        self.log.unlink(missing_ok=True)
        return library


def _is_whole(library: Path) -> bool:
    try:
        return library.stem.endswith(f"-{sha256_of(library)[:CHECKSUM]}")
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
