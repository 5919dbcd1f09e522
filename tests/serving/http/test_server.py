"""What a server asks of the system."""

import asyncio
import socket

import pytest
from fastapi import FastAPI

from gpt.errors import GPTError
from gpt.serving.http.drain import Drain
from gpt.serving.http.limits import Limits
from gpt.serving.http.server import SEND_BYTES, Server, allow_files, bind

resource = pytest.importorskip("resource", reason="Windows has no limit of open files")


@pytest.mark.parametrize(
    ("soft", "hard", "allowed"),
    [
        (256, 10_000, 1536),
        (256, 1000, 1000),
        (256, resource.RLIM_INFINITY, 1536),
        (1536, 10_000, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
    ],
)
def test_as_many_files_may_be_open_as_there_are_connections(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, allowed: int | None
) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda what: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda what, limit: limits.append(limit))
    allow_files(1536)
    assert limits == ([] if allowed is None else [(allowed, hard)])


def test_the_system_keeps_little_for_a_client_that_does_not_read() -> None:
    with bind("127.0.0.1", 0) as bound, socket.create_connection(bound.getsockname()), bound.accept()[0] as accepted:
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) <= 2 * SEND_BYTES  # Linux doubles it


def test_of_two_servers_at_one_port_the_second_is_refused_before_it_loads_a_model() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(GPTError, match=f"cannot listen at 127.0.0.1, port {port}"):
            bind("127.0.0.1", port).close()


def test_a_server_that_cannot_serve_does_not_say_that_it_does() -> None:
    said: list[str] = []
    bound = bind("127.0.0.1", 0)
    bound.close()
    app = FastAPI()
    app.state.count_answer = said.append
    server = Server(app, Drain(), Limits(), 0, said.append)
    with pytest.raises(OSError, match="Bad file descriptor"):
        asyncio.run(server.run(bound, lambda: said.append("serving")))
    assert said == []
