"""One file that is downloaded unless it is there; only complete and verified content gets the file's name."""

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from gpt.system.errors import DataError, first_line
from gpt.system.files import replacing, sha256_of
from gpt.system.progress import Report, announced, silent

ATTEMPTS = 2
"""At each mirror."""


@dataclass(frozen=True)
class Download:
    """One file to fetch: its mirrors in order, its name on disk, its hex sha256 and its cap in bytes."""

    urls: tuple[str, ...]
    filename: str
    sha256: str
    max_bytes: int


class MirrorError(Exception):
    """A mirror cannot give the file; the message says why in a few words."""


def fetch(
    download: Download, folder: Path, *, offline: bool, report: Report, timeout: tuple[float, float] = (5.0, 30.0)
) -> Path:
    """Return the path of the file in `folder`, after downloading it unless it is there with the right sha256.

    With `offline`, no socket is opened. `timeout` has the seconds to connect and for each read. A damaged file stays
    until it is replaced.
    """
    path = folder / download.filename
    content = f"sha256 {download.sha256}, at most {download.max_bytes} bytes"
    by_hand = f"put {download.filename} ({content}) at {path}, or set data.source=file data.path=FILE"
    try:
        problem = _problem(sha256_of(path), download) if path.is_file() else "is missing"
        if problem is None:
            return path
        if offline:
            urls = " or ".join(download.urls)
            raise DataError(f"{path} {problem}, and offline it is not downloaded from {urls}: {by_hand}")
        folder.mkdir(parents=True, exist_ok=True)
        has_bar = sys.stderr is not None and sys.stderr.isatty()
        with announced(silent if has_bar else report, f"downloading {path.name}"):
            failures = {}
            for url in download.urls * ATTEMPTS:
                try:
                    _transfer(url, download, path, timeout)
                    return path
                except MirrorError as error:
                    failures[url] = str(error)
    except OSError as error:
        raise DataError(f"cannot use {path}: {error}; make room, or set GPT_DATA_DIR=FOLDER") from error
    said = "; ".join(f"{url}: {why}" for url, why in failures.items())
    raise DataError(f"no good download: {said}; {by_hand} (GPT_OFFLINE=1: never download)")


def _problem(digest: str, download: Download) -> str | None:
    if digest == download.sha256:
        return None
    return f"got sha256 {digest[:12]}..., expected {download.sha256[:12]}..."


def _transfer(url: str, download: Download, path: Path, timeout: tuple[float, float]) -> None:
    """Put the content of `url` at `path` when it is right."""
    import requests  # opens a socket to look for IPv6

    digest = hashlib.sha256()
    # a unique name because two processes may download at once; the same folder because renames need one disk
    with replacing(path) as temporary:
        try:
            with temporary.open("wb") as file, requests.get(url, stream=True, timeout=timeout) as response:
                response.raise_for_status()
                length = response.headers.get("Content-Length", "")
                total = int(length) if length.isdecimal() and "Content-Encoding" not in response.headers else None
                with tqdm(desc=path.name, total=total, unit="B", unit_scale=True, disable=None) as bar:
                    for chunk in response.iter_content(64 * 1024):
                        if file.tell() + len(chunk) > download.max_bytes:
                            raise MirrorError(f"sends more than {download.max_bytes} bytes")
                        file.write(chunk)
                        digest.update(chunk)
                        bar.update(len(chunk))
        except requests.RequestException as error:
            raise MirrorError(first_line(error)) from error
        if problem := _problem(digest.hexdigest(), download):
            raise MirrorError(problem)
