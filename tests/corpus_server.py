"""A server of corpora on 127.0.0.1 that fails in every way: one path, one behavior."""

import gzip
import hashlib
import random
import socket
import threading
from collections import Counter
from collections.abc import Iterator
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


class Handler(BaseHTTPRequestHandler):
    """One path, one behavior; what it does may depend on how often the path was asked for before."""

    server: "Server"

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        self.server.visits[path] += 1
        self.server.addresses.append(self.path)
        behavior = getattr(self, "serve" + path.replace("/", "_").replace("-", "_"), self.serve_missing)
        behavior(self.server.visits[path])

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", **headers: Any) -> None:
        self.send_response(status)
        for name, value in ({"Content_Length": len(body)} | headers).items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(body)

    def stall(self) -> None:
        self.server.stalled.release()
        self.server.release.wait(PATIENCE)

    def serve_missing(self, visit: int) -> None:
        self.answer(404, b"no such page")

    def serve_good(self, visit: int) -> None:
        self.answer(200, CONTENT)

    def serve_wrong(self, visit: int) -> None:
        self.answer(200, b"<html>please log in</html>")

    def serve_crlf(self, visit: int) -> None:
        self.answer(200, CRLF)

    def serve_always_500(self, visit: int) -> None:
        self.answer(500)

    def serve_500_twice(self, visit: int) -> None:
        self.answer(500) if visit <= 2 else self.answer(200, CONTENT)

    def serve_busy(self, visit: int) -> None:
        self.answer(429, Retry_After=0) if visit == 1 else self.answer(200, CONTENT)

    def serve_busy_no_hint(self, visit: int) -> None:
        self.answer(429) if visit == 1 else self.answer(200, CONTENT)

    def serve_busy_for_an_hour(self, visit: int) -> None:
        self.answer(429, Retry_After=3600) if visit == 1 else self.answer(200, CONTENT)

    def serve_always_cut(self, visit: int) -> None:
        self.answer(200, CONTENT[: len(CONTENT) // 2], Content_Length=len(CONTENT))

    def serve_cut_twice(self, visit: int) -> None:
        self.serve_always_cut(visit) if visit <= 2 else self.serve_good(visit)

    def serve_aborted(self, visit: int) -> None:
        """Close the connection without a word."""

    def serve_silent(self, visit: int) -> None:
        self.stall()

    def serve_stalling(self, visit: int) -> None:
        self.serve_always_cut(visit)
        self.stall()

    def serve_stalling_once(self, visit: int) -> None:
        self.serve_stalling(visit) if visit == 1 else self.serve_good(visit)

    def serve_endless(self, visit: int) -> None:
        self.send_response(200)
        self.end_headers()
        for _ in range(500):
            self.wfile.write(CONTENT)

    def serve_gzip(self, visit: int) -> None:
        self.answer(200, gzip.compress(NOISE), Content_Encoding="gzip")

    def serve_bomb(self, visit: int) -> None:
        self.answer(200, gzip.compress(bytes(10 * CAP)), Content_Encoding="gzip")

    def serve_together(self, visit: int) -> None:
        self.answer(200, CONTENT[:1000], Content_Length=len(CONTENT))
        self.wfile.flush()
        self.server.both.wait(PATIENCE)
        self.wfile.write(CONTENT[1000:])

    def serve_to_http(self, visit: int) -> None:
        self.answer(302, Location=f"{self.server.url}/good")

    def serve_to_same_scheme(self, visit: int) -> None:
        self.answer(302, Location="/good")

    def serve_to_file(self, visit: int) -> None:
        self.answer(302, Location=Path(__file__).as_uri())

    def serve_to_nonsense(self, visit: int) -> None:
        self.answer(302, Location="http://[")


class Server(ThreadingHTTPServer):
    """Counts visits per path, and lets tests see and end a stalled answer."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.visits: Counter[str] = Counter()
        self.addresses: list[str] = []
        self.stalled, self.release = threading.Semaphore(0), threading.Event()
        self.both = threading.Barrier(2)

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
