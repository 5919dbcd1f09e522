"""Clients that are slow with a request or with its answer, that are too many, or that speak no HTTP."""

import contextlib
import json
import socket

import pytest

from gpt.serving.http.connections import HEADER_BYTES
from gpt.serving.http.limits import Limits
from http_server import Serve, Served
from patience import PATIENCE

OK = {"prompt": "It was", "max_tokens": 30}
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
SOON = Limits(request_seconds=0.3, stall_seconds=0.3)
LATER = Limits(request_seconds=2.0, stall_seconds=2.0)
"""Leaves even a busy machine the time to send a request."""


def connect(served: Served, sent: bytes = b"", **options: int) -> socket.socket:
    connection = socket.socket()
    connection.settimeout(PATIENCE)
    if "receive_bytes" in options:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options["receive_bytes"])
    connection.connect(("127.0.0.1", served.port))
    connection.sendall(sent)
    return connection


def read_all(connection: socket.socket) -> bytes:
    """Return what comes until the server closes the connection."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def request(**body: object) -> bytes:
    content = json.dumps({**OK, **body}).encode()
    return HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(content), content)


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
    with serve(limits=SOON) as served, connect(served, sent) as connection:
        answer = read_all(connection)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert "not complete after 0.3 s" in error_of(answer)


def test_a_second_request_on_a_connection_has_the_same_deadline(serve: Serve) -> None:
    with (
        serve(limits=LATER) as served,
        connect(served, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET") as client,
    ):
        first, second = read_all(client).split(b"HTTP/1.1 ")[1:]
        assert (first[:3], second[:3]) == (b"200", b"408")


def test_bytes_that_trickle_in_do_not_move_the_deadline(serve: Serve) -> None:
    with serve(limits=SOON) as served, connect(served, HEAD) as connection:
        connection.settimeout(0.02)
        for number in range(1000):
            try:
                assert connection.recv(9) in (b"HTTP/1.1 ", b"")
                break
            except TimeoutError:
                connection.sendall(b"X-%d: a\r\n" % number)
        assert number < 500


def test_a_body_that_was_refused_is_not_read_for_ever(serve: Serve) -> None:
    with serve(limits=SOON) as served, connect(served, HEAD + b"Content-Length: %d\r\n\r\n" % 10**13) as connection:
        with contextlib.suppress(OSError):  # a reset, or a broken pipe
            for _ in range(100_000):
                connection.sendall(bytes(65536))
            pytest.fail("6 GB were read")
        assert not served.drain.active


def test_an_answer_takes_as_long_as_it_takes(serve: Serve) -> None:
    """Deadlines are for what the client has to do."""
    with serve(limits=LATER) as served, connect(served, request()) as slow, connect(served) as idle:
        served.engine.wait_for_request()
        read_all(idle)  # until the deadline has passed
        served.engine.say("a", "length")
        assert slow.recv(9) == b"HTTP/1.1 "


@pytest.mark.parametrize("ends", [False, True])
def test_a_client_that_does_not_read_is_cut_off(serve: Serve, ends: bool) -> None:
    with serve(limits=SOON) as served, connect(served, request(stream=ends), receive_bytes=4096):
        served.engine.wait_for_request()
        for _ in range(100):
            served.engine.say("a" * 100_000)
        served.engine.say("", "length")
        served.wait_until(lambda: not served.drain.active and not served.connections)


def test_of_too_many_idle_connections_the_oldest_is_closed(serve: Serve) -> None:
    with serve(limits=Limits(connections=20)) as served:
        idle = [connect(served) for _ in range(200)]
        with connect(served, request()) as honest:
            served.engine.wait_for_request()
            more = [connect(served) for _ in range(100)]
            served.engine.say("a", "length")
            assert honest.recv(12) == b"HTTP/1.1 200"
        assert all(read_all(connection) == b"" for connection in idle)
        for connection in idle + more:
            connection.close()


def test_where_all_connections_are_busy_a_new_one_is_refused(serve: Serve) -> None:
    with serve(limits=Limits(connections=3)) as served:
        busy = [connect(served, request()) for _ in range(3)]
        for _ in busy:
            served.engine.wait_for_request()
        with connect(served) as new:
            assert "as many connections" in error_of(read_all(new))
        for number, connection in enumerate(busy):
            served.engine.say("a", "length", number)
            assert connection.recv(12) == b"HTTP/1.1 200"
        served.wait_until(lambda: not served.drain.active)
        with connect(served, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") as next_client:
            assert next_client.recv(12) == b"HTTP/1.1 200"
        for connection in busy:
            connection.close()


def test_small_packets_are_sent_at_once(serve: Serve) -> None:
    """Else the body of an answer waits 40 ms for the client to acknowledge its head."""
    with serve() as served, connect(served):
        served.wait_until(lambda: bool(served.connections))
        (connection,) = served.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",  # TLS
        b"GET / HTTP/1.1\r\n\r\n",  # no Host
        b"GET /\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX" + b"a" * HEADER_BYTES,
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * HEADER_BYTES,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nno number\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        HEAD + b"Content-Length: -5\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused_in_the_shape_of_all_errors(serve: Serve, sent: bytes) -> None:
    with serve() as served, connect(served, sent) as connection:
        answer = read_all(connection)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert error_of(answer) == "Invalid HTTP request received."


def test_nonsense_after_an_answer_has_begun_only_ends_the_connection(serve: Serve, caplog) -> None:
    with serve() as served:
        too_large = HEAD + b"Transfer-Encoding: chunked\r\n\r\n200000\r\n" + bytes(0x200000) + b"\r\nno number\r\n"
        with connect(served) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(too_large)
            assert read_all(connection).count(b"HTTP/1.1 ") <= 1
        assert served.post(prompt="I" * 100).status_code == 400
    assert not caplog.records
