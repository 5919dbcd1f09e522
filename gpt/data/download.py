"""One file that is downloaded unless it is there.

Only complete and verified content gets the file's name.
"""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gpt.system.errors import DataError, first_line
from gpt.system.files import make_folder, replacing, sha256_of
from gpt.system.progress import Report, progress_bar

ATTEMPTS = 2
"""Times that each mirror is asked, all of them before any is asked again."""
CHUNK_BYTES = 64 * 1024
"""Bytes of an answer that are written at a time."""


@dataclass(frozen=True)
class Download:
    """One file to fetch: its mirrors in order, its name on disk, its hex sha256 and its size."""

    urls: tuple[str, ...]
    filename: str
    sha256: str
    size: int


NO_CONNECTION = "no connection"
"""What a mirror that cannot be reached is said to have."""


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
    """Return the path of the file in `folder`; download it unless it is there, with its sha256.

    Args:
        offline: open no socket.
        timeout: seconds to connect, and for each read.

    Raises:
        DataError: no mirror gives the file, or it cannot be written.
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
        # All mirrors in turn, and then all of them again.
        for url in download.urls * ATTEMPTS:
            try:
                _transfer(url, download, path, timeout, report)
                return path
            except MirrorError as error:
                failures[url] = str(error)
    except OSError as error:
        raise DataError(
            f"cannot use {path}: {error}; make room, or set GPT_DATA_DIR=FOLDER"
        ) from error
    if set(failures.values()) == {NO_CONNECTION}:
        # One reason for all: without a network, the addresses would only make the line longer.
        hosts = ", ".join(str(urlsplit(url).hostname) for url in failures)
        said = f"{NO_CONNECTION} to {hosts}"
    else:
        said = "; ".join(f"{url}: {why}" for url, why in failures.items())
    raise DataError(f"download failed: {said}; {by_hand} (GPT_OFFLINE=1: never download)")


def _problem(path: Path, download: Download) -> str | None:
    """Return why a file is not the one to be downloaded, as part of a message; None if it is."""
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
    import requests  # its import opens a socket to look for IPv6, which offline nothing may

    # The temporary file has a name of its own, since two processes may download at once, and lies
    # in the same folder, since a file cannot be renamed to another disk.
    with replacing(path) as temporary:
        try:
            with (
                progress_bar(report, f"downloading {path.name}", download.size, "B") as advance,
                temporary.open("wb") as file,
                requests.get(url, stream=True, timeout=timeout) as response,
            ):
                response.raise_for_status()
                for chunk in response.iter_content(CHUNK_BYTES):
                    # A mirror must not fill the disk. Up to twice the size is read all the same,
                    # so that the message about another version of the text names its hash.
                    if file.tell() + len(chunk) > 2 * download.size:
                        raise MirrorError(f"sends more than {2 * download.size} bytes")
                    file.write(chunk)
                    advance(len(chunk))
        except requests.exceptions.SSLError as error:  # a ConnectionError too, but not of a network
            raise MirrorError(first_line(error)) from error
        except requests.ConnectionError as error:
            raise MirrorError(NO_CONNECTION) from error
        except requests.RequestException as error:
            raise MirrorError(first_line(error)) from error
        problem = _problem(temporary, download)
        if problem is not None:
            raise MirrorError(problem)
