"""One file that is downloaded unless it is there; only complete and verified content gets the file's name."""

import hashlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from gpt.errors import ConfigError, DataError
from gpt.files import sha256_of
from gpt.progress import Report, announced, silent


@dataclass(frozen=True)
class Download:
    """One file to fetch: its mirrors in order, its name on disk, hex sha256 (None: any) and cap in bytes.

    Raises:
        ConfigError: `filename` has other characters than A-Z, a-z, 0-9, '.', '_', '-', or is '.' or '..'.
    """

    urls: tuple[str, ...]
    filename: str
    sha256: str | None
    max_bytes: int

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9._-]+", self.filename) or self.filename in {".", ".."}:
            raise ConfigError(f"{self.filename!r} is not a file name: use only A-Z a-z 0-9 . _ -")


class MirrorError(Exception):
    """A mirror cannot give the file; the message says why in a few words."""


def fetch(
    download: Download,
    folder: Path,
    *,
    offline: bool,
    report: Report,
    allow_http: bool = False,
    timeout: tuple[float, float] = (5.0, 30.0),
    backoff: float = 0.5,
) -> Path:
    """Return the path of the file in `folder`, after downloading it unless it is there with the right sha256.

    With `offline`, no socket is opened; unless `allow_http`, no URL or redirect leaves https. `timeout` has the seconds
    to connect and for each read, `backoff` those before the first retry. `report` takes lines for the user.

    Raises:
        DataError: there is no right content, or `folder` cannot be written; a damaged file stays until it is replaced.
    """
    path = folder / download.filename
    content = f"sha256 {download.sha256 or 'not pinned'}, at most {download.max_bytes} bytes"
    by_hand = f"put {download.filename} ({content}) at {path}, or set data.source=file data.path=FILE"
    try:
        cached = path.is_file()
        if (problem := wrong_content(path, sha256_of(path), download.sha256) if cached else "is missing") is None:
            return path
        if offline:
            urls = " or ".join(download.urls)
            raise DataError(f"{path} {problem}, and offline it is not downloaded from {urls}: {by_hand}")
        if cached:
            report(f"{path} {problem}; downloading it again")
        folder.mkdir(parents=True, exist_ok=True)
        from gpt.corpora.mirrors import transfer_from_mirrors  # imports requests, which opens a socket to look for IPv6

        has_bar = sys.stderr is not None and sys.stderr.isatty()
        with announced(silent if has_bar else report, f"downloading {path.name}"):
            digest = transfer_from_mirrors(download, path, allow_http, timeout, backoff)
    except MirrorError as error:
        raise DataError(f"no good download: {error}; {by_hand} (GPT_OFFLINE=1: never download)") from error
    except OSError as error:
        raise DataError(f"cannot use {path}: {error}; make room, or set GPT_DATA_DIR=FOLDER") from error
    if download.sha256 is None:
        report(f"{path} was not checked; to pin its content, set data.sha256={digest}")
    return path


def wrong_content(path: Path, digest: str, expected: str | None) -> str | None:
    """Return why the file at `path`, of sha256 `digest`, is not the `expected` one; None when it is."""
    if expected is None or digest == expected.lower():
        return None
    if (
        path.stat().st_size < 64 << 20
        and hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest() == expected.lower()
    ):
        return "is a CRLF copy of the right file (its line ends were changed)"
    return f"got sha256 {digest[:12]}..., expected {expected[:12]}..."
