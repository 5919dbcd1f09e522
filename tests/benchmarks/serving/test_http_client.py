"""The client that loads servers: what it makes of streams, and how it paces requests."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from benchmarks.serving.http_client import Client
from benchmarks.serving.load import Answer, Load

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
Handle = Callable[[asyncio.StreamWriter, str], Awaitable[None]]


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": text}]}).encode() + b"\n\n"


def chunked(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def run(handle: Handle, load: Load) -> list[Answer]:
    """Send load to a server that answers each prompt by `handle`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        body = json.loads(await reader.readexactly(length))
        assert head.startswith(b"POST /base/v1/completions ")
        assert (body["model"], body["stream"], body["max_tokens"]) == ("m", True, load.tokens)
        await handle(writer, body["prompt"])
        writer.close()

    async def main() -> list[Answer]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            return await Client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/base", "m").run(load)

    return asyncio.run(main())


def test_characters_are_counted_however_the_stream_is_cut() -> None:
    async def handle(writer: asyncio.StreamWriter, prompt: str) -> None:
        data = event("ab") + event("") + b": a comment\n\n" + event("cde") + b"data: [DONE]\n\n"
        writer.write(HEAD + b"".join(chunked(data[i : i + 7]) for i in range(0, len(data), 7)) + b"0\r\n\r\n")

    (answer,) = run(handle, Load(["x"], 5))
    assert sum(count for _, count in answer.arrived) == 5
    assert answer.sent < answer.arrived[0][0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"HTTP/1.1 429 Too Many\r\ncontent-length: 4\r\n\r\nbusy", "answers 429: busy"),
        (HEAD + chunked(b'data: {"error": {"message": "broken"}}\n\n') + b"0\r\n\r\n", "broken"),
        (HEAD + chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n", "without any text"),
        (b"", "broke its answer off"),
        (HEAD + chunked(event("abc")), "broke its answer off"),
    ],
)
def test_what_is_no_answer_is_an_error(data: bytes, message: str) -> None:
    async def handle(writer: asyncio.StreamWriter, prompt: str) -> None:
        writer.write(data)

    with pytest.RaisesGroup(pytest.RaisesExc(ConnectionError, match=message)):
        run(handle, Load(["x"], 5))


@pytest.mark.parametrize(("arrivals", "most"), [([], 2), ([0.0] * 6, 6)])
def test_a_closed_loop_holds_its_concurrency_and_an_open_loop_does_not_wait(arrivals: list[float], most: int) -> None:
    active = peak = 0
    enough = asyncio.Event()

    async def handle(writer: asyncio.StreamWriter, prompt: str) -> None:
        nonlocal active, peak
        active += 1
        peak = max(peak, active)
        if active == most:
            enough.set()
        await enough.wait()
        await asyncio.sleep(0)
        active -= 1
        writer.write(HEAD + chunked(event(prompt)) + b"0\r\n\r\n")

    answers = run(handle, Load(list("abcdef"), 1, arrivals=arrivals, concurrency=2))
    assert [[count for _, count in answer.arrived] for answer in answers] == [[1]] * 6
    assert peak == most
