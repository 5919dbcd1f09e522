"""One file that is downloaded unless it is there; only complete and verified content gets the file's name.

`requests` is imported where something is downloaded only: it opens a socket to look for IPv6.
"""

import hashlib
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from gpt.errors import ConfigError, DataError
from gpt.files import replacing, sha256_of
from gpt.progress import Report, announced, silent
from gpt.signals import handling

if TYPE_CHECKING:
    import requests


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


class BrokenOff(MirrorError):
    """The body of a response broke off, which is worth another attempt."""


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
        has_bar = sys.stderr is not None and sys.stderr.isatty()
        told = announced(silent if has_bar else report, f"downloading {path.name}")
        with told, _open_session(allow_http, backoff) as session, _exit_on_sigterm():
            digest = _from_mirrors(session, download, path, timeout, backoff)
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


def _open_session(allow_http: bool, backoff: float) -> "requests.Session":
    """Return a session that tries a request five times, and refuses other schemes, after a redirect too."""
    import requests
    import urllib3

    class Retry(urllib3.Retry):
        def get_retry_after(self, response: urllib3.BaseHTTPResponse) -> float:
            # 0 s means the usual backoff
            return min(super().get_retry_after(response) or 0.0, 30.0)

    codes = (429, 500, 502, 503, 504)
    adapter = requests.adapters.HTTPAdapter(
        max_retries=Retry(total=4, backoff_factor=backoff, status_forcelist=codes, raise_on_status=False)
    )
    session = requests.Session()
    session.adapters.clear()
    for scheme in ("https://", "http://") if allow_http else ("https://",):
        session.mount(scheme, adapter)
    return session


def _from_mirrors(
    session: "requests.Session", download: Download, path: Path, timeout: tuple[float, float], backoff: float
) -> str:
    """Put the content of the first mirror that has it at `path`, and return its sha256; see `fetch`."""
    failures = {}
    for url in download.urls:
        for attempt in range(3):
            time.sleep(attempt * backoff)
            try:
                return _transfer(session, url, download, path, timeout)
            except MirrorError as error:
                failures[url] = str(error)
                if not isinstance(error, BrokenOff):
                    break
    raise MirrorError("; ".join(f"{url}: {why}" for url, why in failures.items()) or "no URL given")


def _transfer(
    session: "requests.Session", url: str, download: Download, path: Path, timeout: tuple[float, float]
) -> str:
    """Put the content of `url` at `path` when it is right, and return its sha256."""
    digest = hashlib.sha256()
    # a unique name because two processes may download at once; the same folder because renames need one disk
    with replacing(path) as temporary:
        with temporary.open("wb") as file, _open(session, url, timeout) as response:
            length = response.headers.get("Content-Length", "")  # of the encoded body, if it is encoded
            total = int(length) if length.isdecimal() and "Content-Encoding" not in response.headers else None
            with tqdm(desc=path.name, total=total, unit="B", unit_scale=True, disable=None) as bar:
                for chunk in _chunks(response, timeout):
                    if file.tell() + len(chunk) > download.max_bytes:
                        raise MirrorError(f"sends more than {download.max_bytes} bytes")
                    file.write(chunk)
                    digest.update(chunk)
                    bar.update(len(chunk))
            if total is not None and file.tell() < total:  # only some versions of urllib3 see this themselves
                raise BrokenOff("connection broke")
        if problem := wrong_content(temporary, digest.hexdigest(), download.sha256):
            raise MirrorError(problem)
    return digest.hexdigest()


def _open(session: "requests.Session", url: str, timeout: tuple[float, float]) -> "requests.Response":
    import urllib3

    try:
        response = session.get(url, stream=True, timeout=timeout)
    # requests does not wrap all of them
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise MirrorError(_describe(error, timeout)) from error
    if response.status_code != 200:
        response.close()
        raise MirrorError(f"HTTP {response.status_code}")
    return response


def _chunks(response: "requests.Response", timeout: tuple[float, float]) -> Iterator[bytes]:
    import requests

    try:
        yield from response.iter_content(64 * 1024)
    except requests.RequestException as error:
        raise BrokenOff(_describe(error, timeout)) from error


def _describe(error: Exception, timeout: tuple[float, float]) -> str:
    """Return one short line for an error that requests wraps two or three times."""
    import requests
    import urllib3

    causes = [error, *error.args, *(getattr(wrapped, "reason", None) for wrapped in error.args)]
    words: dict[type[Exception], str] = {
        requests.exceptions.InvalidSchema: "neither a URL nor a redirect may leave https",
        requests.exceptions.SSLError: "no valid TLS connection",
        requests.exceptions.ProxyError: "the proxy gives no connection",
        urllib3.exceptions.ConnectTimeoutError: "cannot connect",
        urllib3.exceptions.ReadTimeoutError: f"timed out after {timeout[1]:g} s",
        urllib3.exceptions.ProtocolError: "connection broke",
    }
    found = (text for kind, text in words.items() if any(isinstance(cause, kind) for cause in causes))
    return next(found, " ".join(f"{type(error).__name__}: {error}".split())[:150])


def _exit_on_sigterm() -> AbstractContextManager[None]:
    """Let SIGTERM unwind the stack, so that the temporary file is removed, unless the caller handles it."""
    is_usual = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    return handling([signal.SIGTERM] if is_usual else [], lambda number, _: sys.exit(128 + number))
