"""The download contract, against a server on 127.0.0.1: no network is used."""

import errno
import hashlib
import inspect
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import requests
import urllib3

from corpus_server import CAP, CONTENT, CRLF, NOISE, SHA256, Server, closed_port, serve_corpora
from gpt.corpora.download import Download, fetch
from gpt.errors import ConfigError, DataError
from patience import PATIENCE

Fetch = Callable[..., Path]
Failure = Callable[..., str]


@pytest.fixture
def server() -> Iterator[Server]:
    with serve_corpora() as server:
        yield server


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture
def no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("socket", "getaddrinfo"):
        monkeypatch.setattr(socket, name, Mock(side_effect=AssertionError("a socket was opened")))


@pytest.fixture
def lines() -> list[str]:
    """What was reported to the user."""
    return []


@pytest.fixture
def get(tmp_path: Path, lines: list[str]) -> Fetch:
    """Fetch corpus.txt with the settings of these tests."""

    def call(*urls: str, sha256: str | None = SHA256, **options: Any) -> Path:
        download = Download(urls, "corpus.txt", sha256, CAP)
        defaults: dict[str, Any] = {"folder": tmp_path, "offline": False, "report": lines.append}
        return fetch(download, **(defaults | {"allow_http": True, "backoff": 0} | options))

    return call


@pytest.fixture
def failure(get: Fetch, tmp_path: Path) -> Failure:
    """The message of a fetch that must fail, in one line and without changing the folder."""

    def call(*urls: str, **options: Any) -> str:
        before = {path: path.read_bytes() for path in tmp_path.iterdir()}
        with pytest.raises(DataError) as caught:
            get(*urls, **options)
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return call


def https_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Carry https requests over plain http, since a certificate for 127.0.0.1 is not at hand."""
    send = requests.adapters.HTTPAdapter.send

    def carry(adapter: Any, request: Any, **options: Any) -> Any:
        address = request.url
        request.url = address.replace("https:", "http:")
        response = send(adapter, request, **options)
        response.url = address
        return response

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", carry)


@pytest.mark.parametrize("sha256", [SHA256, None])
def test_a_good_file_arrives_alone_and_readable_from_the_first_mirror_that_has_it(
    server: Server, get: Fetch, tmp_path: Path, lines: list[str], sha256: str | None
) -> None:
    folder = tmp_path / "new" / "folder"
    wrong = [f"{server.url}/wrong"] * (sha256 is not None)
    path = get(f"{closed_port()}/good", *wrong, f"{server.url}/good", folder=folder, sha256=sha256)
    assert path == folder / "corpus.txt"
    assert path.read_bytes() == CONTENT
    assert list(folder.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o644
    assert get(f"{server.url}/gzip", sha256=hashlib.sha256(NOISE).hexdigest()).read_bytes() == NOISE
    # without one, that to pin is reported
    assert [f"data.sha256={SHA256}" in line for line in lines] == [True] * (sha256 is None)


def test_progress_bar_is_for_terminals_only(
    server: Server, get: Fetch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    get(f"{server.url}/good", folder=tmp_path / "a")
    assert screen.getvalue() == ""
    screen.isatty = lambda: True  # type: ignore[method-assign]
    get(f"{server.url}/good", folder=tmp_path / "b")
    assert "corpus.txt: 100%" in screen.getvalue()


def test_proxy_of_the_environment(server: Server, get: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", server.url)
    assert get("http://corpus.invalid/good").read_bytes() == CONTENT
    assert server.addresses == ["http://corpus.invalid/good"]


def test_two_downloads_at_once_both_succeed(server: Server, get: Fetch, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(get, [f"{server.url}/together"] * 2)
    assert server.visits["/together"] == 2
    assert first.read_bytes() == second.read_bytes() == CONTENT
    assert list(tmp_path.iterdir()) == [first]


# --- servers that fail


@pytest.mark.parametrize("page", ["/500-twice", "/busy", "/busy-no-hint", "/cut-twice", "/stalling-once"])
def test_passing_trouble_is_retried(server: Server, get: Fetch, page: str) -> None:
    path = get(server.url + page, timeout=(PATIENCE, 2.0))
    assert path.read_bytes() == CONTENT
    assert server.visits[page] in {2, 3}


@pytest.mark.parametrize(
    ("page", "words", "visits"),
    [
        ("/always-500", "HTTP 500", 5),
        ("/aborted", "connection broke", 5),
        ("/silent", "timed out after 0.5 s", 5),
        ("/always-cut", "connection broke", 3),
        ("/stalling", "timed out after 0.5 s", 3),
        ("/none", "HTTP 404", 1),
        ("/to-file", "neither a URL nor a redirect may leave https", 1),
        ("/endless", "sends more than 1000000 bytes", 1),
        ("/bomb", "sends more than 1000000 bytes", 1),
    ],
)
def test_lasting_trouble_is_named_after_few_attempts(
    server: Server, failure: Failure, page: str, words: str, visits: int
) -> None:
    seconds = 0.5 if "timed out" in words else PATIENCE
    assert f"{page}: {words};" in failure(server.url + page, sha256=None, timeout=(PATIENCE, seconds))
    assert server.visits[page] == visits


def test_cut_body_is_seen_when_urllib3_does_not_count(
    server: Server, failure: Failure, monkeypatch: pytest.MonkeyPatch
) -> None:
    lenient = property(lambda response: False, lambda response, value: None)
    monkeypatch.setattr(urllib3.HTTPResponse, "enforce_content_length", lenient, raising=False)
    assert "connection broke" in failure(f"{server.url}/always-cut", sha256=None)


def test_waits_grow_and_retry_after_is_obeyed_up_to_30_seconds(
    server: Server, get: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    get(f"{server.url}/cut-twice", backoff=1.5, folder=get(f"{server.url}/busy-for-an-hour").parent / "other")
    assert max(waits) == 30
    assert waits[-3:] == [0, 1.5, 3]


# --- mirrors


def test_all_failures_are_named_with_the_way_out(
    server: Server, failure: Failure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "corpus.txt").write_bytes(b"mine")  # stays
    dead = closed_port()
    message = failure(*(f"{server.url}/{page}" for page in ("wrong", "none", "crlf", "to-nonsense")), f"{dead}/good")
    wrong = hashlib.sha256(b"<html>please log in</html>").hexdigest()
    assert f"{server.url}/wrong: got sha256 {wrong[:12]}..., expected {SHA256[:12]}...;" in message
    assert f"{server.url}/none: HTTP 404;" in message
    assert f"{server.url}/crlf: is a CRLF copy" in message
    assert f"{server.url}/to-nonsense: " in message
    assert f"{dead}/good: cannot connect;" in message
    assert f"at {tmp_path / 'corpus.txt'}" in message
    assert "data.path=FILE" in message
    assert "GPT_OFFLINE" in message
    assert "no URL given" in failure()
    monkeypatch.setenv("HTTP_PROXY", dead)
    assert "/good: the proxy gives no connection;" in failure("http://corpus.invalid/good")


# --- addresses


def test_nothing_but_https_is_used(
    server: Server, failure: Failure, get: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "https" in failure(f"{server.url}/good", allow_http=False)
    assert not server.visits
    secure = server.url.replace("http:", "https:")
    assert "/good: no valid TLS connection;" in failure(f"{secure}/good", allow_http=False)
    with monkeypatch.context() as context:
        context.setenv("REQUESTS_CA_BUNDLE", "/no/such/bundle")
        assert "CA certificate bundle" in failure(f"{secure}/good", allow_http=False)
    https_to(monkeypatch)
    server.visits.clear()
    assert "may leave https" in failure(f"{secure}/to-http", allow_http=False)
    assert server.visits == {"/to-http": 1}
    assert get(f"{secure}/to-same-scheme", allow_http=False).read_bytes() == CONTENT


@pytest.mark.parametrize("filename", ["a/b", "../b", "/b", "a\\b", "", ".", "..", "a b", "a\n", "é"])
def test_file_names_that_could_leave_the_folder_are_refused(filename: str) -> None:
    with pytest.raises(ConfigError, match="file name"):
        Download(("https://corpus.invalid/good",), filename, SHA256, CAP)


# --- a file that is already there


@pytest.mark.usefixtures("no_socket")
@pytest.mark.parametrize("offline", [False, True])
@pytest.mark.parametrize("sha256", [SHA256, SHA256.upper(), None])
def test_good_cached_file_needs_no_socket(
    get: Fetch, tmp_path: Path, lines: list[str], sha256: str | None, offline: bool
) -> None:
    (tmp_path / "corpus.txt").write_bytes(CONTENT)
    assert get("https://corpus.invalid/good", sha256=sha256, offline=offline).read_bytes() == CONTENT
    assert lines == []


@pytest.mark.parametrize(("damaged", "words"), [(CONTENT[:-1], "got sha256"), (CRLF, "is a CRLF copy")])
def test_damaged_cached_file_is_reported_and_replaced(
    server: Server, get: Fetch, tmp_path: Path, lines: list[str], damaged: bytes, words: str
) -> None:
    (tmp_path / "corpus.txt").write_bytes(damaged)
    assert get(f"{server.url}/good").read_bytes() == CONTENT
    assert len(lines) == 1
    assert words in lines[0]
    assert str(tmp_path / "corpus.txt") in lines[0]


@pytest.mark.usefixtures("no_socket")
@pytest.mark.parametrize(
    ("damaged", "words"), [(None, "is missing"), (b"other text", "got sha256"), (CRLF, "is a CRLF copy")]
)
def test_offline_says_what_to_put_where_and_opens_no_socket(
    failure: Failure, tmp_path: Path, damaged: bytes | None, words: str
) -> None:
    if damaged is not None:
        (tmp_path / "corpus.txt").write_bytes(damaged)
    message = failure("https://corpus.invalid/one", "https://corpus.invalid/two", offline=True)
    for part in (words, "corpus.txt", SHA256, str(CAP), str(tmp_path / "corpus.txt"), "/one", "/two"):
        assert part in message


# --- folders and interruptions


@pytest.mark.parametrize(
    ("function", "code"), [("tempfile.mkstemp", errno.EACCES), ("os.fsync", errno.ENOSPC), ("os.mkdir", errno.EEXIST)]
)
def test_a_folder_that_cannot_be_written_is_an_error(
    server: Server, failure: Failure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, function: str, code: int
) -> None:
    monkeypatch.setattr(function, Mock(side_effect=OSError(code, os.strerror(code))))
    message = failure(f"{server.url}/good", folder=tmp_path / "new" if function == "os.mkdir" else tmp_path)
    assert os.strerror(code) in message
    assert "GPT_DATA_DIR" in message


def test_interrupted_download_leaves_nothing_behind(server: Server, get: Fetch, tmp_path: Path) -> None:
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from pathlib import Path; from gpt.corpora.download import Download, fetch\n"
        "download = Download((sys.argv[1],), 'corpus.txt', None, 1_000_000)\n"
        "fetch(download, Path(sys.argv[2]), offline=False, report=print, allow_http=True)\n"
    )
    root = Path(inspect.getfile(fetch)).parents[2]
    endings = {signal.SIGINT: (-signal.SIGINT, 0), signal.SIGTERM: (143, 0), signal.SIGKILL: (-signal.SIGKILL, 1)}
    children = {}
    for number in endings:  # all at once, because starting takes most of the time
        command = [sys.executable, "-c", program, f"{server.url}/stalling", str(tmp_path / number.name)]
        children[number] = subprocess.Popen(command, cwd=root, stderr=subprocess.DEVNULL)
    for _ in children:
        assert server.stalled.acquire(timeout=PATIENCE)
    for number, (status, left_over) in endings.items():
        folder = tmp_path / number.name
        assert len(list(folder.iterdir())) == 1
        children[number].send_signal(number)
        assert children[number].wait(PATIENCE) == status
        assert len(list(folder.iterdir())) == left_over
        assert get(f"{server.url}/good", folder=folder).read_bytes() == CONTENT


@pytest.mark.parametrize("handler", [signal.SIG_DFL, lambda *_: None], ids=["default", "own"])
def test_sigterm_handler_of_the_caller_stays(server: Server, get: Fetch, handler: Any) -> None:
    during: list[Any] = []
    server.answering = lambda: during.append(signal.getsignal(signal.SIGTERM))
    before = signal.signal(signal.SIGTERM, handler)
    try:
        get(f"{server.url}/good")
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (during[0] is handler) == (handler is not signal.SIG_DFL)
