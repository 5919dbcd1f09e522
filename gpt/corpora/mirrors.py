"""Transfer a file from the first of several mirrors that gives it whole and right."""

import hashlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests
import urllib3
from tqdm import tqdm

from gpt.corpora.download import Download, MirrorError, wrong_content
from gpt.files import sync_folder, temporary_file


class _Retry(urllib3.Retry):
    def get_retry_after(self, response: urllib3.BaseHTTPResponse) -> float:
        return min(super().get_retry_after(response) or 0.0, 30.0)  # 0 s means the usual backoff


class _Session(requests.Session):
    def __init__(self, allow_http: bool, timeout: tuple[float, float], backoff: float) -> None:
        super().__init__()
        self.timeout, self.backoff = timeout, backoff
        codes = (429, 500, 502, 503, 504)
        retry = _Retry(total=4, backoff_factor=backoff, status_forcelist=codes, raise_on_status=False)
        self.adapters.clear()  # a URL without adapter is refused, after a redirect too
        for scheme in ("https://", "http://") if allow_http else ("https://",):
            self.mount(scheme, requests.adapters.HTTPAdapter(max_retries=retry))


def transfer_from_mirrors(
    download: Download, path: Path, allow_http: bool, timeout: tuple[float, float], backoff: float
) -> str:
    """Put the content of the first mirror that has it at `path`, and return its sha256; see `fetch`.

    Raises:
        MirrorError: none has it.
    """
    with _Session(allow_http, timeout, backoff) as session, _exit_on_sigterm():
        return _from_mirrors(session, download, path)


def _from_mirrors(session: _Session, download: Download, path: Path) -> str:
    failures = {}
    for url in download.urls:
        for attempt in range(3):
            time.sleep(attempt * session.backoff)
            try:
                return _transfer(session, url, download, path)
            except MirrorError as error:
                failures[url] = str(error)
                break
            except requests.RequestException as error:  # the body broke off: worth a retry
                failures[url] = _describe(error, session.timeout)
    raise MirrorError("; ".join(f"{url}: {why}" for url, why in failures.items()) or "no URL given")


def _transfer(session: _Session, url: str, download: Download, path: Path) -> str:
    """Put the content of `url` at `path` when it is right, and return its sha256."""
    digest = hashlib.sha256()
    # a unique name because two processes may download at once; the same folder because renames need one disk
    with temporary_file(path) as temporary:
        with temporary.open("wb") as file, _open(session, url) as response:
            length = response.headers.get("Content-Length", "")  # of the encoded body, if it is encoded
            total = int(length) if length.isdecimal() and "Content-Encoding" not in response.headers else None
            with tqdm(desc=path.name, total=total, unit="B", unit_scale=True, disable=None) as bar:
                for chunk in response.iter_content(64 * 1024):
                    if file.tell() + len(chunk) > download.max_bytes:
                        raise MirrorError(f"sends more than {download.max_bytes} bytes")
                    file.write(chunk)
                    digest.update(chunk)
                    bar.update(len(chunk))
            if total is not None and file.tell() < total:  # only some versions of urllib3 see this themselves
                raise requests.exceptions.ChunkedEncodingError(urllib3.exceptions.ProtocolError("too short"))
            file.flush()
            os.fsync(file.fileno())
        if problem := wrong_content(temporary, digest.hexdigest(), download.sha256):
            raise MirrorError(problem)
        temporary.chmod(0o644)
        os.replace(temporary, path)
    sync_folder(path.parent)
    return digest.hexdigest()


def _open(session: _Session, url: str) -> requests.Response:
    try:
        response = session.get(url, stream=True, timeout=session.timeout)
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:  # requests wraps not all of them
        raise MirrorError(_describe(error, session.timeout)) from error
    if response.status_code != 200:
        response.close()
        raise MirrorError(f"HTTP {response.status_code}")
    return response


def _describe(error: Exception, timeout: tuple[float, float]) -> str:
    """Return one short line for an error that requests wraps two or three times."""
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


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind the stack, so that the temporary file is removed, unless the caller handles it."""
    in_main = threading.current_thread() is threading.main_thread()
    ours = in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
