"""What a server asks of the system."""

import socket

import pytest

from gpt.serving.http.server import SEND_BYTES, allow_files, bind

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
    with bind("127.0.0.1", 0) as bound:
        bound.listen()
        with socket.create_connection(bound.getsockname()), bound.accept()[0] as accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) <= 2 * SEND_BYTES  # Linux doubles it
