"""The folder of compiled libraries.

Libraries run as code when they are loaded, so no other user may write to this folder.
"""

import os
from pathlib import Path

from gpt.system.errors import DeviceError

ROOT_USER = 0
"""The user id of root, who may write everywhere, and may have prepared a cache for all."""
OWNER_ONLY = 0o700
"""Mode of a folder that nobody else can list, read or write."""
WRITABLE_BY_OTHERS = 0o022
"""Bits of a file's mode: its group, or everyone, may write it."""
REMEDY = "remove it, or let XDG_CACHE_HOME name a folder of yours"
"""What a message tells the user to do about a file that somebody else may have written."""


def kernels_folder(cache: Path) -> Path:
    """Return the folder of a cache that has the libraries and the results of their trials."""
    return cache / "kernels"


def make_kernels_folder(cache: Path) -> Path:
    """Make the folder of libraries, and the cache itself, for their owner only; return the folder.

    Raises:
        OSError: a folder cannot be made.
    """
    folder = kernels_folder(cache)
    cache.parent.mkdir(parents=True, exist_ok=True)
    for new_folder in (cache, folder):
        # The umask of a user may let others write to new folders; libraries there run as code.
        new_folder.mkdir(mode=OWNER_ONLY, exist_ok=True)
    return folder


def require_own(*paths: Path) -> None:
    """Check that only this user or root can have written some files and folders.

    Missing files and folders are skipped.

    Raises:
        DeviceError: another user can have written the file or folder that the message names.
    """
    if os.name == "nt":  # on Windows a file mode does not say who may write
        return
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            continue  # the path is missing, or unreadable, so that no library is loaded from it
        if status.st_uid not in (os.geteuid(), ROOT_USER):
            raise DeviceError(f"{path} belongs to another user, whose code would run; {REMEDY}")
        if status.st_mode & WRITABLE_BY_OTHERS:
            raise DeviceError(
                f"{path} can be written by other users, whose code would run; {REMEDY}"
            )
