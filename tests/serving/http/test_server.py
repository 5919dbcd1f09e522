"""What a server asks of the system and of uvicorn, and what it says of itself: health, its document."""

import contextlib
import socket

import pytest

from gpt.serving.http.limits import HEADER_BYTES, Limits
from gpt.serving.http.server import bind
from gpt.system.errors import GPTError
from http_server import Serve, Served, assert_is_error, read_all


def test_of_two_servers_at_one_port_the_second_is_refused_before_it_loads_a_model() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(GPTError, match=f"cannot listen at 127.0.0.1, port {port}"):
            bind("127.0.0.1", port).close()


def test_small_packets_are_sent_at_once(serve: Serve) -> None:
    """Else the body of an answer waits 40 ms for the client to acknowledge its head."""
    with serve() as served, served.connect():
        served.wait_until(lambda: bool(served.connections))
        (connection,) = served.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_connections_and_headers_are_limited(serve: Serve) -> None:
    with serve(limits=Limits(connections=2)) as served:
        with served.connect():
            served.wait_until(lambda: bool(served.connections))
            assert served.get("/health").status_code == 503
        served.wait_until(lambda: not served.connections)
        assert served.get("/health").status_code == 200
        with served.connect() as connection:
            with contextlib.suppress(OSError):
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 8 * HEADER_BYTES)
            assert read_all(connection).startswith(b"HTTP/1.1 400 ")


def test_the_reference_documents_what_the_server_takes(server: Served) -> None:
    document = server.get("/openapi.json").json()
    protocol = {path for path in document["paths"] if not path.startswith("/api/")}  # the rest is the playground's
    assert protocol == {"/v1/completions", "/v1/models", "/v1/models/{name}", "/health"}
    assert document["components"]["schemas"]["CompletionRequest"]["properties"]["top_k"]["description"]


def test_health_is_said_until_an_engine_fails(manual: Served) -> None:
    assert manual.get("/health").json() == {"status": "ok"}
    manual.engine.failure = RuntimeError("broken")
    assert_is_error(manual.get("/health"), 503, None, "broken")
