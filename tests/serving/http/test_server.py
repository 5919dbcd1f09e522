"""What a server asks of the system and of uvicorn, and what it says of itself: health, metrics, its document."""

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
    assert protocol == {"/v1/completions", "/v1/models", "/v1/models/{name}", "/health", "/metrics"}
    assert document["components"]["schemas"]["CompletionRequest"]["properties"]["top_k"]["description"]


def test_the_metrics_count_what_happened(server: Served) -> None:
    def value(name: str) -> float:
        lines = server.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    grown = {
        'gpt_requests_total{status="200"}': 1,
        "gpt_prompt_tokens_total": 6,
        "gpt_request_seconds_count": 1,
        "gpt_tokens_generated_total{": 8,
    }
    before = {name: value(name) for name in grown}
    server.post(prompt="It was", max_tokens=8, model="second")
    assert {name: value(name) - before[name] for name in grown} == grown
    assert value('gpt_blocks{model="second"}') > 0
    assert value("gpt_running{") == 0


def test_every_answer_is_counted_by_its_status(manual: Served) -> None:
    for path, status in (("/nowhere", 404), ("/v1/completions", 405), ("/health", 200)):
        assert manual.get(path).status_code == status
    assert manual.get("/health", Host="evil.example").status_code == 403
    assert manual.post().status_code == 400
    text = manual.get("/metrics").text
    counts = dict(line.split(" ") for line in text.splitlines() if line.startswith("gpt_answers_total"))
    assert counts == {f'gpt_answers_total{{status="{status}"}}': "1.0" for status in (200, 400, 403, 404, 405)}


def test_health_is_said_until_an_engine_fails(manual: Served) -> None:
    assert manual.get("/health").json() == {"status": "ok"}
    manual.engine.failure = RuntimeError("broken")
    assert_is_error(manual.get("/health"), 503, None, "broken")
