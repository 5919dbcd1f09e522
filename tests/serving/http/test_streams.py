"""Streams whose every token the test decides: what is sent when, how they end, and who goes away in the middle."""

import asyncio
import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from http.client import HTTPResponse
from typing import Any

import pytest

from gpt.extras.serving.http.responses import Response
from gpt.generation.tokens import SampledToken
from http_server import Served, post_bytes
from patience import PATIENCE

OK = {"prompt": "It was", "max_tokens": 30}


def ask(served: Served, stream: bool = True, path: str = "/v1/completions") -> socket.socket:
    """Send a request, and wait until the engine has it."""
    body = {**OK, "stream": stream} if path.startswith("/v1") else OK
    connection = served.connect(post_bytes(path, **body))
    served.engine.wait_for_request()
    return connection


def vanish(connection: socket.socket) -> None:
    """Close a connection as a process does that is killed."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def events(connection: socket.socket) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream, which has an end: choices, or the bodies of errors."""
    with connection.makefile("r", encoding="utf-8") as lines:
        for line in lines:
            if line == "data: [DONE]\n":
                return
            if line.startswith("data: "):
                body = json.loads(line.removeprefix("data: "))
                yield body["choices"][0] if "choices" in body else body
    pytest.fail("the stream has no end")


@pytest.mark.parametrize(
    ("path", "stream"), [("/v1/completions", False), ("/v1/completions", True), ("/api/generate", True)]
)
@pytest.mark.parametrize(("tokens", "leave"), [(0, vanish), (3, socket.socket.close)])
def test_client_that_goes_away_is_cancelled_at_once(
    manual: Served, path: str, stream: bool, tokens: int, leave: Any
) -> None:
    connection = ask(manual, stream, path)
    for _ in range(tokens):
        manual.engine.say("a")
    leave(connection)
    manual.engine.wait_for_cancel()
    assert manual.engine.cancelled == manual.engine.requests


def test_prompts_are_not_scored_for_a_client_that_left(manual: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    scored, begun, go_on = [], threading.Event(), threading.Event()

    def score(model: object, ids: list[int], count: int) -> list[SampledToken]:
        scored.append(ids)
        begun.set()
        assert go_on.wait(PATIENCE)
        return [SampledToken(index) for index in ids]

    monkeypatch.setattr("gpt.extras.serving.http.prompts.prompt_logprobs", score)
    connection = manual.connect(post_bytes(prompt=["It was"] * 64, echo=True, logprobs=1))
    assert begun.wait(PATIENCE)
    vanish(connection)
    manual.wait_until(lambda: not manual.connections)
    go_on.set()
    manual.wait_until(lambda: not manual.services.active)
    assert len(scored) == 1
    assert manual.engine.requests == []


def test_many_vanished_clients_are_cancelled_and_no_other(manual: Served) -> None:
    """A choice that has ended is not cancelled, nor is one of a client that stays."""
    connections = [ask(manual, stream=bool(number % 2)) for number in range(50)]
    first, *leaving, last = connections
    for connection in leaving:
        vanish(connection)
    for _ in leaving:
        manual.engine.wait_for_cancel(PATIENCE)
    manual.engine.say("ab", "length", 0)
    assert first.recv(12) == b"HTTP/1.1 200"
    manual.engine.say("ab", "length", 49)
    assert list(events(last))[-1]["finish_reason"] == "length"
    for connection in (first, last):
        vanish(connection)
    manual.wait_until(lambda: not manual.services.active and not manual.connections)
    assert set(map(id, manual.engine.cancelled)) == set(map(id, manual.engine.requests[1:-1]))


def test_token_is_sent_when_it_comes_and_the_end_once(manual: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with ask(manual) as connection:
        stream = events(connection)
        for text in ("a", "", "bc"):
            manual.engine.say(text)
            if text:
                choice = next(stream)
                assert (choice["text"], choice["finish_reason"]) == (text, None)
        manual.engine.say("", "length")
        assert [choice["finish_reason"] for choice in stream] == ["length"]
    monkeypatch.setattr("gpt.extras.serving.http.responses.CHUNK_SECONDS", 1000.0)
    with ask(manual) as connection:  # neither the first token nor the end waits for a chunk
        manual.engine.say("a", request=1)
        chunks = events(connection)
        assert next(chunks)["text"] == "a"
        manual.engine.say("b", request=1)
        manual.engine.say("c", "length", 1)
        assert [chunk["text"] for chunk in chunks] == ["bc"]


@pytest.mark.parametrize("path", ["/v1/completions", "/api/generate"])
@pytest.mark.parametrize("finish", ["error", "cancelled"])
def test_failure_in_a_stream_is_an_event_after_the_text(manual: Served, path: str, finish: str) -> None:
    with ask(manual, path=path) as connection:
        manual.engine.say("abc")
        manual.engine.requests[0].error = ValueError("no more numbers") if finish == "error" else None
        manual.engine.say("", finish)
        *chunks, last = events(connection)
    assert chunks
    assert path.startswith("/api") or "".join(chunk["text"] for chunk in chunks) == "abc"
    assert last["error"]["type"] == "server_error"
    assert ("no more numbers" in last["error"]["message"]) is (finish == "error")


def test_failure_of_an_answer_is_500(manual: Served) -> None:
    with ask(manual, stream=False) as connection:
        manual.engine.requests[0].error = ValueError("no more numbers")
        manual.engine.say("", "error")
        answer = HTTPResponse(connection)
        answer.begin()
        assert (answer.status, b"no more numbers" in answer.read()) == (500, True)


@pytest.mark.parametrize(("streams", "seconds"), [(1, 0.03), (8, 0.03), (32, 0.12)])
def test_chunks_come_less_often_with_many_streams(
    streams: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float | None] = []
    monkeypatch.setattr(asyncio, "timeout", lambda delay: given.append(delay) or nullcontext())  # type: ignore[func-returns-value]
    active: set[Response] = set()
    active |= {Response(None, 0, 0, active) for _ in range(streams)}  # type: ignore[arg-type]
    response = next(iter(active))
    response._changed.set()
    asyncio.run(response.wait())
    assert given == pytest.approx([seconds])


def test_reader_that_does_not_read_holds_up_nobody_else(manual: Served) -> None:
    with ask(manual):
        for _ in range(200):
            manual.engine.say("a" * 10_000)
        with ask(manual) as other:
            manual.engine.say("ab", "length", 1)
            assert len(list(events(other))) == 1
