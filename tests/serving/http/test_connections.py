"""Clients that are slow with a request or with its answer, that are too many, or that speak no HTTP."""

import contextlib
import json
import socket

import pytest

from gpt.serving.http.limits import HEADER_BYTES, Limits
from http_server import HEAD, Serve, Served, post_bytes, read_all

OK = {"prompt": "It was", "max_tokens": 30}
SOON = Limits(request_seconds=0.3, stall_seconds=0.3)
LATER = Limits(request_seconds=2.0, stall_seconds=2.0)
"""Leaves even a busy machine the time to send a request."""


def error_of(answer: bytes) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error["message"]


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /he", HEAD, HEAD + b"Content-Length: 50\r\n\r\n{", HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n"],
)
def test_a_request_that_does_not_come_is_refused(serve: Serve, sent: bytes) -> None:
    with serve(limits=SOON) as served, served.connect(sent) as connection:
        answer = read_all(connection)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert "not complete after 0.3 s" in error_of(answer)


def test_a_second_request_on_a_connection_has_the_same_deadline(serve: Serve) -> None:
    with (
        serve(limits=LATER) as served,
        served.connect(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET") as client,
    ):
        first, second = read_all(client).split(b"HTTP/1.1 ")[1:]
        assert (first[:3], second[:3]) == (b"200", b"408")


def test_bytes_that_trickle_in_do_not_move_the_deadline(serve: Serve) -> None:
    with serve(limits=SOON) as served, served.connect(HEAD) as connection:
        connection.settimeout(0.02)
        for number in range(1000):
            try:
                assert connection.recv(9) in (b"HTTP/1.1 ", b"")
                break
            except TimeoutError:
                connection.sendall(b"X-%d: a\r\n" % number)
        assert number < 500


def test_a_body_that_was_refused_is_not_read_for_ever(serve: Serve) -> None:
    with serve(limits=SOON) as served, served.connect(HEAD + b"Content-Length: %d\r\n\r\n" % 10**13) as connection:
        with contextlib.suppress(OSError):  # a reset, or a broken pipe
            for _ in range(100_000):
                connection.sendall(bytes(65536))
            pytest.fail("6 GB were read")
        assert not served.responses.active


def test_an_answer_takes_as_long_as_it_takes(serve: Serve) -> None:
    """Deadlines are for what the client has to do."""
    with serve(limits=LATER) as served, served.connect(post_bytes(**OK)) as slow, served.connect() as idle:
        served.engine.wait_for_request()
        read_all(idle)  # until the deadline has passed
        served.engine.say("a", "length")
        assert slow.recv(9) == b"HTTP/1.1 "


@pytest.mark.parametrize("ends", [False, True])
def test_a_client_that_does_not_read_is_cut_off(serve: Serve, ends: bool) -> None:
    with serve(limits=SOON) as served, served.connect(post_bytes(**OK, stream=ends), receive_bytes=4096):
        served.engine.wait_for_request()
        for _ in range(100):
            served.engine.say("a" * 100_000)
        served.engine.say("", "length")
        served.wait_until(lambda: not served.responses.active and not served.connections)


def test_of_too_many_idle_connections_the_oldest_is_closed(serve: Serve) -> None:
    with serve(limits=Limits(connections=20)) as served:
        idle = [served.connect() for _ in range(200)]
        with served.connect(post_bytes(**OK)) as honest:
            served.engine.wait_for_request()
            more = [served.connect() for _ in range(100)]
            served.engine.say("a", "length")
            assert honest.recv(12) == b"HTTP/1.1 200"
        assert all(read_all(connection) == b"" for connection in idle)
        for connection in idle + more:
            connection.close()


def test_where_all_connections_are_busy_a_new_one_is_refused(serve: Serve) -> None:
    with serve(limits=Limits(connections=3)) as served:
        busy = [served.connect(post_bytes(**OK)) for _ in range(3)]
        for _ in busy:
            served.engine.wait_for_request()
        with served.connect() as new:
            assert "as many connections" in error_of(read_all(new))
        for number, connection in enumerate(busy):
            served.engine.say("a", "length", number)
            assert connection.recv(12) == b"HTTP/1.1 200"
        served.wait_until(lambda: not served.responses.active)
        with served.connect(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") as next_client:
            assert next_client.recv(12) == b"HTTP/1.1 200"
        for connection in busy:
            connection.close()


def test_small_packets_are_sent_at_once(serve: Serve) -> None:
    """Else the body of an answer waits 40 ms for the client to acknowledge its head."""
    with serve() as served, served.connect():
        served.wait_until(lambda: bool(served.connections))
        (connection,) = served.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
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
ENDLESS_CODINGS = (
    b"identity",
    b"chunked, identity",
    b"chunked, chunked",
    b", chunked",
    b"chunked,",
    b"",
    b"chunked;a=b",
)
"""That do not say with certainty where a body ends."""


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
        (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501),
        *((HEAD + b"Transfer-Encoding: %s\r\n\r\n" % coding, 400) for coding in ENDLESS_CODINGS),
        (HEAD + b"Transfer-Encoding: \x0bchunked\r\n\r\n", 400),
        (HEAD + b"Transfer_Encoding: chunked\r\nTransfer-Encoding : chunked\r\n\r\n", 400),
        (HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n", 400),
        *((HEAD + b"Content-Length:%s\r\n\r\n" % length, 400) for length in NO_LENGTHS),
    ],
)
def test_what_is_no_http_is_refused_in_the_shape_of_all_errors(server: Served, sent: bytes, status: int) -> None:
    """Of RFC 9112: what two readers could read as two different requests, the rest of the connection included."""
    with server.connect(sent + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") as connection:
        answer = read_all(connection)
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert answer.count(b"HTTP/1.1 ") == 1
        assert error_of(answer)


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


def test_every_answer_is_counted_by_its_status(serve: Serve) -> None:
    with serve(limits=SOON) as served:
        with served.connect(b"GET /\r\n\r\n") as wrong, served.connect(b"GET /he") as late:
            read_all(wrong), read_all(late)
        for path, status in (("/nowhere", 404), ("/v1/completions", 405), ("/health", 200)):
            assert served.get(path).status_code == status
        assert served.get("/health", Host="evil.example").status_code == 403
        assert served.post().status_code == 400
        text = served.get("/metrics").text
    counts = dict(line.split(" ") for line in text.splitlines() if line.startswith("gpt_answers_total"))
    expected = {200: 1, 400: 2, 403: 1, 404: 1, 405: 1, 408: 1}
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


def test_head_of_what_is_only_posted_says_what_is_allowed(server: Served) -> None:
    with server.http() as client:
        assert client.head("/v1/completions").headers["Allow"] == "POST"
        assert client.post("/health").headers["Allow"] == "GET, HEAD"
        assert client.head("/nowhere").status_code == 404


def test_nonsense_after_an_answer_has_begun_only_ends_the_connection(serve: Serve, caplog) -> None:
    with serve() as served:
        too_large = HEAD + b"Transfer-Encoding: chunked\r\n\r\n200000\r\n" + bytes(0x200000) + b"\r\nno number\r\n"
        with served.connect() as connection:
            with contextlib.suppress(OSError):
                connection.sendall(too_large)
            assert read_all(connection).count(b"HTTP/1.1 ") <= 1
        assert served.post(prompt="I" * 100).status_code == 400
    assert not caplog.records
