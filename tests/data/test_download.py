"""Every source of text ends in good files, or in a sentence that says what to do.

Downloads are from 127.0.0.1.
"""

import errno
import gzip
import hashlib
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from gpt.config import DataConfig
from gpt.data import locating
from gpt.data.download import Download, fetch
from gpt.data.locating import SHAKESPEARE, corpus_files
from gpt.system.environment import Settings
from gpt.system.errors import DataError
from gpt.system.progress import silent
from patience import PATIENCE

CONTENT = b"To be, or not to be, that is the question:\n" * 5000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
SIZE = 500_000
CUT = (200, CONTENT[: len(CONTENT) // 2], {"Content-Length": len(CONTENT)})
PAGES: dict[str, list[tuple[int, bytes, dict[str, object]]]] = {
    "/good": [(200, CONTENT, {})],
    "/gzip": [(200, gzip.compress(CONTENT), {"Content-Encoding": "gzip"})],
    "/wrong": [(200, b"<html>please log in</html>", {})],
    "/cut-once": [CUT, (200, CONTENT, {})],
    "/always-cut": [CUT],
    "/always-500": [(500, b"", {})],
    "/bomb": [(200, gzip.compress(bytes(20 * SIZE)), {"Content-Encoding": "gzip"})],
    "/nonsense": [(200, CONTENT, {"Content-Length": "abc"})],
}
"""Answers to the first, the second, ... request; the last one to all later ones."""
Fetch = Callable[..., Path]


class Handler(BaseHTTPRequestHandler):
    """Answers as `PAGES` says; on /silent, not at all."""

    server: "Server"

    def do_GET(self) -> None:
        self.server.visits[self.path] += 1
        if self.path == "/silent":
            self.server.release.wait(PATIENCE)
            return
        answers = PAGES[self.path]
        status, body, headers = answers[min(self.server.visits[self.path], len(answers)) - 1]
        self.send_response(status)
        for name, value in ({"Content-Length": len(body)} | headers).items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Counts visits per path."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.visits: Counter[str] = Counter()
        self.release = threading.Event()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is part of these tests."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.release.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("socket", "getaddrinfo"):
        monkeypatch.setattr(socket, name, Mock(side_effect=AssertionError("a socket was opened")))


@pytest.fixture
def get(tmp_path: Path) -> Fetch:
    """Fetch corpus.txt with the settings of these tests."""

    def call(
        *urls: str, folder: Path = tmp_path, offline: bool = False, seconds: float = PATIENCE
    ) -> Path:
        download = Download(urls, "corpus.txt", SHA256, SIZE)
        return fetch(download, folder, offline=offline, report=print, timeout=(PATIENCE, seconds))

    return call


@pytest.fixture
def failure(get: Fetch, tmp_path: Path) -> Callable[..., str]:
    """The message of a fetch that must fail, in one line and without changing the folder."""

    def call(*urls: str, **options: Any) -> str:
        before = {path: path.read_bytes() for path in tmp_path.iterdir()}
        with pytest.raises(DataError) as caught:
            get(*urls, **options)
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return call


@pytest.mark.parametrize("page", ["/good", "/gzip", "/cut-once", "/nonsense"])
def test_good_file_comes_alone_from_the_first_mirror_with_it(
    server: Server, get: Fetch, tmp_path: Path, page: str
) -> None:
    folder = tmp_path / "new" / "folder"
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{unused.getsockname()[1]}"
    path = get(f"{closed}/good", f"{server.url}/wrong", server.url + page, folder=folder)
    assert path == folder / "corpus.txt"
    assert path.read_bytes() == CONTENT
    assert list(folder.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("/always-500", "500 Server Error"),
        ("/silent", "timed out"),
        ("/always-cut", ""),
        ("/wrong", "got sha256"),
        ("/bomb", "sends more than 1000000 bytes"),
    ],
)
def test_lasting_trouble_is_named_after_two_attempts(
    server: Server, failure: Callable[..., str], page: str, words: str
) -> None:
    said = failure(server.url + page, seconds=0.5 if page == "/silent" else PATIENCE)
    assert said.startswith("download failed: ")
    assert words in said
    assert server.visits[page] == 2


def test_without_a_network_one_short_line_says_what_to_put_where(
    failure: Callable[..., str], tmp_path: Path
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    said = failure(f"http://127.0.0.1:{port}/one", f"http://localhost:{port}/two")
    assert said.startswith("download failed: no connection to 127.0.0.1, localhost; put corpus.txt")
    assert "\n" not in said
    assert SHA256 in said
    assert str(tmp_path / "corpus.txt") in said
    assert len(said) < 300 + len(str(tmp_path))


def test_damaged_file_is_replaced_and_a_good_one_needs_no_socket(
    server: Server, get: Fetch, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "corpus.txt").write_bytes(CONTENT[:-1])
    assert get(f"{server.url}/good").read_bytes() == CONTENT
    request.getfixturevalue("no_socket")
    assert get("https://corpus.invalid/good").read_bytes() == CONTENT


@pytest.mark.usefixtures("no_socket")
@pytest.mark.parametrize(
    ("damaged", "words"), [(None, "is missing"), (b"other text", "got sha256")]
)
def test_offline_says_what_to_put_where_and_opens_no_socket(
    failure: Callable[..., str], tmp_path: Path, damaged: bytes | None, words: str
) -> None:
    if damaged is not None:
        (tmp_path / "corpus.txt").write_bytes(damaged)
    message = failure("https://corpus.invalid/one", "https://corpus.invalid/two", offline=True)
    for part in (
        words,
        "corpus.txt",
        SHA256,
        str(SIZE),
        str(tmp_path / "corpus.txt"),
        "/one",
        "/two",
    ):
        assert part in message


@pytest.mark.parametrize(
    ("function", "code"),
    [("tempfile.mkdtemp", errno.EACCES), ("os.fsync", errno.ENOSPC), ("os.fsync", errno.EDQUOT)],
)
def test_unwritable_folder_is_an_error(
    server: Server,
    failure: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    code: int,
) -> None:
    monkeypatch.setattr(function, Mock(side_effect=OSError(code, os.strerror(code))))
    message = failure(f"{server.url}/good")
    assert os.strerror(code) in message
    assert "GPT_DATA_DIR" in message
    # More room helps only on a full disk, and not if a folder refuses to be written.
    assert ("make room" in message) == (code != errno.EACCES)


OFFLINE = Settings(data_dir=None, cache_dir=Path("unused"), offline=True)


def locate(settings: Settings = OFFLINE, **keys: Any) -> Path:
    (file,) = corpus_files(DataConfig.model_validate(keys), settings, silent)
    return file


def refusal(settings: Settings = OFFLINE, **keys: Any) -> str:
    with pytest.raises(DataError) as caught:
        locate(settings, **keys)
    return str(caught.value)


@pytest.mark.usefixtures("no_socket")
def test_own_file_is_used_in_place_unless_empty_or_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "text.txt"
    monkeypatch.setenv("HOME", str(tmp_path))
    for size, said in ((0, "0 bytes"), (1 << 40, "1,099,511,627,776 bytes")):
        text.touch()
        os.truncate(text, size)
        assert f"{text} has {said}; a corpus has 1 to " in refusal(source="file", path=str(text))
    os.truncate(text, 9)
    assert locate(source="file", path=str(text), dir=f"{text}/none") == text
    assert locate(source="file", path="~/text.txt") == text


def test_pydocs_is_pythons_documentation_written_once(tmp_path: Path) -> None:
    path = locate(source="pydocs", dir=str(tmp_path / "new" / "data"))
    text = path.read_text(encoding="utf-8")
    written = path.stat()
    assert path.parent == tmp_path / "new" / "data"
    assert len(text) > 100_000
    assert 'The "if" statement' in text
    assert locate(source="pydocs", dir=str(path.parent)) == path
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == (written.st_mtime_ns, written.st_ino)


@pytest.mark.usefixtures("no_socket")
def test_shakespeare_comes_from_the_environment_before_data_dir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The real corpus would have to be downloaded: a small one takes its place.
    small = Download(SHAKESPEARE.urls, SHAKESPEARE.filename, SHA256, 1000)
    monkeypatch.setattr(locating, "SHAKESPEARE", small)
    for folder in ("common", "data"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / small.filename).write_bytes(CONTENT)
    for common, expected in ((tmp_path / "common", "common"), (None, "data")):
        settings = Settings(data_dir=common, cache_dir=tmp_path, offline=True)
        assert locate(settings, dir=str(tmp_path / "data")) == tmp_path / expected / small.filename
