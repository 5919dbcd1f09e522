"""A server of corpora on 127.0.0.1 that fails in every way: one path, one behavior."""

import gzip
import hashlib
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from patience import PATIENCE

CONTENT = b"To be, or not to be, that is the question:\n" * 5000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
CRLF = CONTENT.replace(b"\n", b"\r\n")
NOISE = random.Random(0).randbytes(100_000)  # gzip makes it longer
CAP = 1_000_000


Answer = tuple[int, bytes, dict[str, object]]
GOOD, BROKEN, BUSY = (200, CONTENT, {}), (500, b"", {}), (429, b"", {})
CUT = (200, CONTENT[: len(CONTENT) // 2], {"Content-Length": len(CONTENT)})
PAGES: dict[str, list[Answer]] = {
    "/good": [GOOD],
    "/wrong": [(200, b"<html>please log in</html>", {})],
    "/crlf": [(200, CRLF, {})],
    "/always-500": [BROKEN],
    "/500-twice": [BROKEN, BROKEN, GOOD],
    "/busy": [(429, b"", {"Retry-After": 0}), GOOD],
    "/busy-no-hint": [BUSY, GOOD],
    "/busy-for-an-hour": [(429, b"", {"Retry-After": 3600}), GOOD],
    "/always-cut": [CUT],
    "/cut-twice": [CUT, CUT, GOOD],
    "/stalling": [CUT],
    "/stalling-once": [CUT, GOOD],
    "/gzip": [(200, gzip.compress(NOISE), {"Content-Encoding": "gzip"})],
    "/bomb": [(200, gzip.compress(bytes(10 * CAP)), {"Content-Encoding": "gzip"})],
    "/endless": [(200, CONTENT * 5, {"Content-Length": None})],
    "/to-same-scheme": [(302, b"", {"Location": "/good"})],
    "/to-file": [(302, b"", {"Location": Path(__file__).as_uri()})],
    "/to-nonsense": [(302, b"", {"Location": "http://["})],
}
"""Answers to the first, the second, ... request; the last one to all later ones."""


class Handler(BaseHTTPRequestHandler):
    """Answers as `PAGES` says, and on a few paths stalls or hangs up."""

    server: "Server"

    def do_GET(self) -> None:
        path, server = urlsplit(self.path).path, self.server
        server.visits[path] += 1
        server.addresses.append(self.path)
        if path == "/aborted":
            return
        if path == "/silent":
            self._stall()
        elif path == "/to-http":
            self._answer(302, Location=f"{server.url}/good")
        elif path == "/together":
            self._answer(200, CONTENT[:1000], **{"Content-Length": len(CONTENT)})
            self.wfile.flush()
            server.both.wait(PATIENCE)
            self.wfile.write(CONTENT[1000:])
        else:
            answers = PAGES.get(path, [(404, b"no such page", {})])
            status, body, headers = answers[min(server.visits[path], len(answers)) - 1]
            server.answering()
            self._answer(status, body, **headers)
            if path.startswith("/stalling") and body is not CONTENT:
                self._stall()

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, status: int, body: bytes = b"", **headers: object) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": len(body)} | headers).items():
            if value is not None:
                self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def _stall(self) -> None:
        self.server.stalled.release()
        self.server.release.wait(PATIENCE)


class Server(ThreadingHTTPServer):
    """Counts visits per path, and lets tests see and end a stalled answer."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.visits: Counter[str] = Counter()
        self.addresses: list[str] = []
        self.stalled, self.release = threading.Semaphore(0), threading.Event()
        self.both = threading.Barrier(2)
        self.answering: Callable[[], object] = lambda: None
        """Called before an answer."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is part of these tests."""


@contextmanager
def serve_corpora() -> Iterator[Server]:
    """Run a server in a thread until the context ends."""
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.release.set()
        server.shutdown()
        thread.join()


def closed_port() -> str:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}"
