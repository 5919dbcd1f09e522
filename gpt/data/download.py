"""Download a file unless a folder already has it.

Only complete and verified content gets the file's name.
"""

import errno
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gpt.system.errors import DataError, first_line
from gpt.system.files import make_folder, replacing, sha256_of
from gpt.system.progress import Report, progress_bar

ATTEMPTS = 2
"""Number of times that each mirror is asked."""
CHUNK_BYTES = 64 * 1024
"""Number of bytes of a response that are written at a time."""


@dataclass(frozen=True)
class Download:
    """One file to fetch: its mirrors in order, its name on disk, its hex sha256 and its size."""

    urls: tuple[str, ...]
    filename: str
    sha256: str
    size: int


NO_CONNECTION = "no connection"
"""The message about a mirror that cannot be reached."""


class MirrorError(Exception):
    """A mirror cannot give the file; the message says why in a few words."""


def fetch(
    download: Download,
    folder: Path,
    *,
    offline: bool,
    report: Report,
    timeout: tuple[float, float] = (5.0, 30.0),
) -> Path:
    """Return the path of the file in `folder`, after downloading it if necessary.

    A file with another sha256 than that of `download` is downloaded again.

    Args:
        offline: whether to raise an error instead of downloading.
        timeout: seconds to wait for a connection, and for each read.

    Raises:
        DataError: no mirror sends the file, or it cannot be written.
    """
    path = folder / download.filename
    failures: dict[str, str] = {}
    content = f"sha256 {download.sha256}, {download.size} bytes"
    by_hand = (
        f"put {download.filename} ({content}) at {path}, or set data.source=file data.path=FILE"
    )
    try:
        problem = _problem(path, download)
        if problem is None:
            return path
        if offline:
            urls = " or ".join(download.urls)
            raise DataError(
                f"{path} {problem}, and offline it is not downloaded from {urls}: {by_hand}"
            )
        make_folder(folder)
        # All mirrors are asked once before any is asked again, since one may be down.
        for url in download.urls * ATTEMPTS:
            try:
                _transfer(url, download, path, timeout, report)
                return path
            except MirrorError as error:
                failures[url] = str(error)
    except OSError as error:
        remedy = "set GPT_DATA_DIR=FOLDER"
        is_disk_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        if is_disk_full:
            remedy = f"make room, or {remedy}"
        raise DataError(f"cannot use {path}: {error}; {remedy}") from error
    if set(failures.values()) == {NO_CONNECTION}:
        # Without a network all mirrors fail alike, and the hosts are enough instead of all URLs.
        hosts = ", ".join(str(urlsplit(url).hostname) for url in failures)
        summary = f"{NO_CONNECTION} to {hosts}"
    else:
        summary = "; ".join(f"{url}: {why}" for url, why in failures.items())
    raise DataError(
        f"download failed: {summary}; {by_hand} (with GPT_OFFLINE=1 no download is tried)"
    )


def _problem(path: Path, download: Download) -> str | None:
    """Return why a file is not the one to download, as a part of a message, or None if it is."""
    if not path.is_file():
        return "is missing"
    digest = sha256_of(path)
    if digest == download.sha256:
        return None
    return f"got sha256 {digest[:12]}..., expected {download.sha256[:12]}..."


def _transfer(
    url: str, download: Download, path: Path, timeout: tuple[float, float], report: Report
) -> None:
    """Download `url` to `path`, which only complete and verified content replaces."""
    # Imported here, since the import opens a socket to look for IPv6. With `offline` nothing may.
    import requests

    # The temporary file has a unique name, since two processes may download at once, and lies in
    # the same folder, since a file cannot be renamed to another disk.
    with replacing(path) as temporary:
        try:
            with (
                progress_bar(report, f"downloading {path.name}", download.size, "B") as advance,
                temporary.open("wb") as file,
                requests.get(url, stream=True, timeout=timeout) as response,
            ):
                response.raise_for_status()
                for chunk in response.iter_content(CHUNK_BYTES):
                    # A limit keeps a mirror from filling the disk. It is twice the expected size,
                    # since another version of the file may be somewhat longer: that one is read to
                    # its end, and the message below tells the user its hash.
                    if file.tell() + len(chunk) > 2 * download.size:
                        raise MirrorError(f"sends more than {2 * download.size} bytes")
                    file.write(chunk)
                    advance(len(chunk))
        except requests.exceptions.SSLError as error:
            # SSLError is a subclass of ConnectionError, but is caught before it: it means that the
            # mirror was reached.
            raise MirrorError(first_line(error)) from error
        except requests.ConnectionError as error:
            raise MirrorError(NO_CONNECTION) from error
        except requests.RequestException as error:
            raise MirrorError(first_line(error)) from error
        problem = _problem(temporary, download)
        if problem is not None:
            raise MirrorError(problem)
