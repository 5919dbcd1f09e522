"""Streams whose every token the test decides: what is sent when, how they end, and who goes away in the middle."""

import json
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from gpt.generation import SampledToken
from http_server import Served, post_bytes
from patience import PATIENCE

OK = {"prompt": "It was", "max_tokens": 30}


def ask(served: Served, stream: bool) -> socket.socket:
    """Send a request, and wait until the engine has it."""
    connection = served.connect(post_bytes(**OK, stream=stream))
    served.engine.wait_for_request()
    return connection


def vanish(connection: socket.socket) -> None:
    """Close a connection as a process does that is killed."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def events(connection: socket.socket) -> Iterator[str]:
    """Yield the data of the events of a stream."""
    with connection.makefile("r", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("data: "):
                yield line.removeprefix("data: ").rstrip("\n")
                if line == "data: [DONE]\n":
                    return


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tokens", [0, 3])
@pytest.mark.parametrize("leave", [vanish, socket.socket.close])
def test_a_client_that_goes_away_is_cancelled_at_once(manual: Served, stream: bool, tokens: int, leave) -> None:
    connection = ask(manual, stream)
    for _ in range(tokens):
        manual.engine.say("a")
    leave(connection)
    manual.engine.wait_for_cancel()
    assert manual.engine.cancelled == manual.engine.requests


def test_the_first_token_and_the_end_do_not_wait_for_a_chunk(manual: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpt.serving.http.completions.CHUNK_SECONDS", 1000.0)
    connection = ask(manual, True)
    manual.engine.say("a")
    chunks = events(connection)
    assert json.loads(next(chunks))["choices"][0]["text"] == "a"
    manual.engine.say("b")
    manual.engine.say("c", "length")
    *texts, done = chunks
    assert [json.loads(text)["choices"][0]["text"] for text in texts] == ["bc"]
    assert done == "[DONE]"
    connection.close()


def test_many_sequences_have_fewer_chunks(manual: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside millions of sequences, the chunk after the first waits for the end."""
    monkeypatch.setattr("gpt.serving.http.responses.Response.running_beside", 8 * 10**6)  # at least 30,000 s
    connection = ask(manual, True)
    manual.engine.say("a")
    chunks = events(connection)
    next(chunks)
    manual.engine.say("b")
    manual.engine.say("c", "length")
    *texts, _ = chunks
    assert [json.loads(text)["choices"][0]["text"] for text in texts] == ["bc"]
    connection.close()


def test_prompts_are_not_scored_for_a_client_that_has_gone(manual: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    scored, begun, go_on = [], threading.Event(), threading.Event()

    def score(model: object, ids: list[int], count: int) -> list[SampledToken]:
        scored.append(ids)
        begun.set()
        assert go_on.wait(PATIENCE)
        return [SampledToken(index) for index in ids]

    monkeypatch.setattr("gpt.serving.http.prompts.prompt_logprobs", score)
    connection = manual.connect(post_bytes(prompt=["It was"] * 64, echo=True, logprobs=1))
    assert begun.wait(PATIENCE)
    vanish(connection)
    manual.wait_until(lambda: not manual.connections)
    go_on.set()
    manual.wait_until(lambda: not manual.responses.active)
    assert len(scored) == 1
    assert manual.engine.requests == []


def test_only_the_request_of_that_client_is_cancelled(manual: Served) -> None:
    first, second = ask(manual, True), ask(manual, False)
    third = ask(manual, True)
    vanish(second)
    manual.engine.wait_for_cancel()
    for request in (0, 2):
        manual.engine.say("ab", "length", request)
    for connection in (first, third):
        *_, last, done = events(connection)
        assert json.loads(last)["choices"][0]["finish_reason"] == "length"
        assert done == "[DONE]"
        connection.close()
    assert manual.engine.cancelled == [manual.engine.requests[1]]


def test_a_finished_request_is_not_cancelled(manual: Served) -> None:
    connection = ask(manual, True)
    manual.engine.say("ab", "stop")
    assert len(list(events(connection))) == 2
    vanish(connection)
    assert manual.engine.cancelled == []


def test_a_token_is_sent_when_it_comes_and_an_end_is_sent_once(manual: Served) -> None:
    with ask(manual, True) as connection:
        stream = events(connection)
        for text in ("a", "", "bc"):
            manual.engine.say(text)
            if text:
                choice = json.loads(next(stream))["choices"][0]
                assert (choice["text"], choice["finish_reason"]) == (text, None)
        manual.engine.say("", "length")
        assert json.loads(next(stream))["choices"][0]["finish_reason"] == "length"
        assert list(stream) == ["[DONE]"]


def test_text_that_is_waiting_is_sent_in_one_chunk(manual: Served) -> None:
    with ask(manual, True) as connection:
        for letter in "abcdefghij":
            manual.engine.say(letter)
        manual.engine.say("", "length")
        chunks = [json.loads(event)["choices"][0] for event in list(events(connection))[:-1]]
        assert "".join(chunk["text"] for chunk in chunks) == "abcdefghij"
        assert len(chunks) <= 3


@pytest.mark.parametrize("finish", ["error", "cancelled"])
def test_a_failure_in_a_stream_is_an_event_after_the_text(manual: Served, finish: str) -> None:
    with ask(manual, True) as connection:
        manual.engine.say("abc")
        manual.engine.requests[0].error = ValueError("no more numbers")
        manual.engine.say("", finish)
        *chunks, last, done = events(connection)
        assert "".join(json.loads(chunk)["choices"][0]["text"] for chunk in chunks) == "abc"
        assert json.loads(last)["error"]["type"] == "server_error"
        assert done == "[DONE]"


def test_a_reader_that_does_not_read_holds_up_nobody_else(manual: Served) -> None:
    with ask(manual, True):
        for _ in range(200):
            manual.engine.say("a" * 10_000)
        with ask(manual, True) as other:
            manual.engine.say("ab", "length", 1)
            assert len(list(events(other))) == 2


def test_many_clients_that_vanish_leave_nothing_behind(manual: Served) -> None:
    connections = [ask(manual, stream=bool(number % 2)) for number in range(100)]
    for connection in connections:
        vanish(connection)
    for _ in connections:
        manual.engine.wait_for_cancel(PATIENCE)
    assert set(map(id, manual.engine.cancelled)) == set(map(id, manual.engine.requests))
    manual.wait_until(lambda: not manual.responses.active)
