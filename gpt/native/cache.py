"""The folder of compiled libraries.

What is loaded from it runs as code, so nobody else may write there.
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
    """Return where a cache has its libraries and verdicts."""
    return cache / "kernels"


def make_kernels_folder(cache: Path) -> Path:
    """Make the folder of libraries, and the cache itself, for their owner only.

    Raise OSError if that fails.
    """
    folder = kernels_folder(cache)
    cache.parent.mkdir(parents=True, exist_ok=True)
    for each in (cache, folder):
        # The mode is given here, and not left to the umask, since libraries run as code.
        each.mkdir(mode=OWNER_ONLY, exist_ok=True)
    return folder


def require_own(*paths: Path) -> None:
    """Check that nobody but this user, or root, may have written some files or folders.

    Files and folders that are missing are passed over.

    Raises:
        DeviceError: somebody else may have written the one that the message names.
    """
    if os.name == "nt":  # modes on Windows do not say who may write
        return
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            continue  # where the owner cannot be found out, no library can be read either
        if status.st_uid not in (os.geteuid(), ROOT_USER):
            raise DeviceError(f"{path} belongs to another user, whose code would run; {REMEDY}")
        if status.st_mode & WRITABLE_BY_OTHERS:
            raise DeviceError(
                f"{path} can be written by other users, whose code would run; {REMEDY}"
            )
