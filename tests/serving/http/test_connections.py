"""Connections: what is no HTTP is refused, every answer is counted, and of HTTP what clients rely on is there."""

import contextlib
import json
import socket

import pytest

from gpt.serving.http.limits import HEADER_BYTES, Limits
from http_server import HEAD, Serve, Served, post_bytes, read_all

OK = {"prompt": "It was", "max_tokens": 30}
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_too_many_connections_are_refused_until_some_end(serve: Serve) -> None:
    with serve(limits=Limits(connections=2)) as served:
        with served.connect(post_bytes(**OK)), served.connect():
            served.engine.wait_for_request()
            with served.connect() as new:  # which asks for nothing yet
                answer = read_all(new).lower()
        assert answer.startswith(b"http/1.1 503 ")
        assert b"retry-after: " in answer
        assert b"as many connections" in answer
        served.wait_until(lambda: not served.connections)
        assert 'gpt_answers_total{status="503"} 1.0' in served.get("/metrics").text


@pytest.mark.parametrize(
    "end",
    [
        b"Content-Length: %d\r\n\r\n",
        b"Origin: x\r\nContent-Length: %d\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n%x\r\n",
    ],
)
def test_a_body_that_was_refused_is_not_read_for_ever(manual: Served, end: bytes) -> None:
    with manual.connect(HEAD + end % 10**13) as connection, contextlib.suppress(OSError):
        for _ in range(10_000):
            connection.sendall(bytes(65536))
        pytest.fail("600 MB were read")


def test_small_packets_are_sent_at_once(serve: Serve) -> None:
    """Else the body of an answer waits 40 ms for the client to acknowledge its head."""
    with serve() as served, served.connect():
        served.wait_until(lambda: bool(served.connections))
        (connection,) = served.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


GET = HEALTH.removesuffix(b"\r\n")
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n"
NO_HOSTS = (
    b"",
    b"ada@localhost",
    b"localhost/health",
    b"localhost, other",
    b"localhost:x",
    b"[",
    b"[localhost]",
    b"a b",
)
NO_CHUNKS = (b"no number", b"-1", b"0x1", b"f" * 21, b"2\r\n{}X\r\n0\r\n")
NO_LENGTHS = (b"", b" 5, 6", b" -5", b" +5", b" 0x5", b" 5_0", b" \xb2", b" 1 1")
NO_TARGETS = (b"*", b"health", b"localhost:80", b"ftp://localhost/health", b"/health#end", b"/health?a#end")
NO_CODINGS = (b"identity", b"chunked, identity", b"chunked, chunked", b", chunked", b"chunked,", b"", b"gzip, chunked")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),  # TLS
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host
        (GET + b"Host: other\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET /health HTTP/1.0\r\n\r\n", 400),  # of an unknown host
        *((GET.replace(b"localhost", host) + b"\r\n", 400) for host in NO_HOSTS),
        *((GET.replace(b"/health", target) + b"\r\n", 400) for target in NO_TARGETS),
        (b"GET /health HTTP/3.0\r\nHost: localhost\r\n\r\n", 505),
        (GET + b"X: a\r\n" * HEADER_BYTES, 431),
        (GET + b"X: " + b"a" * 200_000, 431),  # without an end
        (GET + b"X: " + b"a" * HEADER_BYTES + b"\r\n\r\n", 431),  # in one piece, with its end
        (b"GET /" + b"a" * HEADER_BYTES + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
        (b"G" * HEADER_BYTES + b" / HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
        *((GET + header + b"\r\n\r\n", 400) for header in (b"X : a", b"X Y: a", b"X: a\0b")),
        (b"GET /health HTTP/1.1\r\n Host: localhost\r\n\r\n", 400),
        *((CHUNKED + b"\r\n" + chunk + b"\r\n", 400) for chunk in NO_CHUNKS),
        (CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0") + b"\r\n0\r\n\r\n", 400),
        (CHUNKED + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        *((HEAD + b"Transfer-Encoding: %s\r\n\r\n" % coding, 400) for coding in (*NO_CODINGS, b"\x0bchunked")),
        (HEAD + b"Transfer_Encoding: chunked\r\nTransfer-Encoding : chunked\r\n\r\n", 400),
        (HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n", 400),
        *((HEAD + b"Content-Length:%s\r\n\r\n" % length, 400) for length in NO_LENGTHS),
    ],
)
def test_what_is_no_http_is_refused_in_the_shape_of_all_errors(server: Served, sent: bytes, status: int) -> None:
    """Of RFC 9112: what two readers could read as two different requests, the rest of the connection included."""
    with server.connect() as connection:
        with contextlib.suppress(OSError):  # refused before its end
            connection.sendall(sent + HEALTH)
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.count(b"HTTP/1.1 ") == 1
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    assert json.loads(body)["error"].keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        (b"http://localhost/health", b"evil.example", 200),
        (b"HTTP://localhost:1", b"localhost", 200),
        (b"http://localhost/health?a=b", b"localhost", 200),
        (b"http://evil.example/health", b"localhost", 403),
        (b"http://ada@localhost/health", b"localhost", 400),
        (b"http:///health", b"localhost", 400),
    ],
)
def test_a_request_for_a_whole_url_is_one_to_its_host(server: Served, target: bytes, host: bytes, status: int) -> None:
    sent = b"GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % (target, host)
    with server.connect(sent) as connection:
        assert read_all(connection).startswith(b"HTTP/1.1 %d " % status)


def test_every_answer_is_counted_by_its_status(manual: Served) -> None:
    with manual.connect(b"GET /\r\n\r\n") as wrong:
        read_all(wrong)
    for path, status in (("/nowhere", 404), ("/v1/completions", 405), ("/health", 200)):
        assert manual.get(path).status_code == status
    assert manual.get("/health", Host="evil.example").status_code == 403
    assert manual.post().status_code == 400
    text = manual.get("/metrics").text
    counts = dict(line.split(" ") for line in text.splitlines() if line.startswith("gpt_answers_total"))
    expected = {200: 1, 400: 2, 403: 1, 404: 1, 405: 1}
    assert counts == {f'gpt_answers_total{{status="{status}"}}': f"{count:.1f}" for status, count in expected.items()}


@pytest.mark.parametrize("path", [b"/", b"/health", b"/v1/models", b"/metrics", b"/openapi.json", b"/api/runs"])
def test_head_is_get_without_the_body(server: Served, path: bytes) -> None:
    def ask(method: bytes) -> tuple[bytes, bytes]:
        sent = method + b" " + path + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        with server.connect(sent) as connection:
            head, _, body = read_all(connection).partition(b"\r\n\r\n")
        return b"\r\n".join(line for line in head.split(b"\r\n") if not line.startswith(b"date")), body

    (head, nothing), (got, body) = ask(b"HEAD"), ask(b"GET")
    assert nothing == b""
    assert body
    if path != b"/metrics":
        assert head == got


def test_nonsense_after_an_answer_has_begun_only_ends_the_connection(manual: Served, caplog) -> None:
    too_large = HEAD + b"Transfer-Encoding: chunked\r\n\r\n200000\r\n" + bytes(0x200000) + b"\r\nno number\r\n"
    with manual.connect() as connection:
        with contextlib.suppress(OSError):
            connection.sendall(too_large)
        assert read_all(connection).count(b"HTTP/1.1 ") <= 1
    assert manual.post(prompt="I" * 100).status_code == 400
    assert not caplog.records
