"""Streams whose every token the test decides: what is sent when, how they end, and who goes away in
the middle.
"""

import json
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from http_server import Served, post_bytes

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
    ("path", "stream"),
    [("/v1/completions", False), ("/v1/completions", True), ("/api/generate", True)],
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


def test_token_is_sent_when_it_comes_and_the_end_once(
    manual: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_chat_names_the_role_in_the_first_part_of_each_choice(manual: Served) -> None:
    messages = [{"role": "user", "content": "It was"}]
    with manual.client().chat.completions.stream(model="first", messages=messages, n=2) as stream:
        for _ in range(2):
            manual.engine.wait_for_request()
        chunks = (event.chunk.choices[0] for event in stream if event.type == "chunk")
        roles = []
        for text, request in (("a", 0), ("b", 1), ("c", 0), ("d", 1)):
            manual.engine.say(text, request=request)
            chunk = next(chunks)
            roles.append((chunk.index, chunk.delta.role))
        for request in range(2):
            manual.engine.say("", "stop", request)
        assert [chunk.delta.role for chunk in chunks] == [None, None]
        messages = [choice.message for choice in stream.get_final_completion().choices]
    assert roles == [(0, "assistant"), (1, "assistant"), (0, None), (1, None)]
    assert [(message.role, message.content) for message in messages] == [
        ("assistant", "ac"),
        ("assistant", "bd"),
    ]


@pytest.mark.parametrize("path", ["/v1/completions", "/api/generate"])
@pytest.mark.parametrize("finish", ["error", "cancelled"])
def test_failure_in_a_stream_is_an_event_after_the_text(
    manual: Served, path: str, finish: str
) -> None:
    with ask(manual, path=path) as connection:
        manual.engine.say("abc")
        manual.engine.requests[0].error = (
            ValueError("no more numbers") if finish == "error" else None
        )
        manual.engine.say("", finish)
        *chunks, last = events(connection)
    assert chunks
    assert path.startswith("/api") or "".join(chunk["text"] for chunk in chunks) == "abc"
    assert last["error"]["type"] == "server_error"
    assert ("no more numbers" in last["error"]["message"]) is (finish == "error")


def test_reader_that_does_not_read_holds_up_nobody_else(manual: Served) -> None:
    with ask(manual):
        for _ in range(200):
            manual.engine.say("a" * 10_000)
        with ask(manual) as other:
            manual.engine.say("ab", "length", 1)
            assert len(list(events(other))) == 1
