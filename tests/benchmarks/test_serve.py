"""`bench.py serve`: once as a whole, at a size that costs seconds; its client; what is made of the times, by hand."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cli import main
from benchmarks.http_load import Answer, poisson_arrivals, random_prompts, send, summarize_answers
from benchmarks.serve import Run, start_server
from gpt.system.errors import GPTError

TINY = ["--shape", "1/2/16", "--window", "32", "--prompt-lengths", "4", "8", "--tokens", "6", "--rounds", "1"]
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
Handle = Callable[[asyncio.StreamWriter, str], Awaitable[None]]


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": text}]}).encode() + b"\n\n"


def chunked(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def run(handle: Handle, prompts: list[str], **load: object) -> list[Answer]:
    """Send load to a server that answers each prompt by `handle`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        body = json.loads(await reader.readexactly(length))
        assert (body["stream"], body["max_tokens"]) == (True, 5)
        await handle(writer, body["prompt"])
        writer.close()

    async def exchange() -> list[Answer]:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            return await send(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", prompts, 5, **load)

    return asyncio.run(exchange())


def test_server_answers_closed_and_open_loops(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *TINY, "--concurrency", "3", "--requests", "5", "--rates", "50"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {Run(row["concurrency"], row["rate"]): row for row in json.loads(lines[-1])["results"]}
    assert {one: row["requests"] for one, row in rows.items()} == {Run(1): 2, Run(3): 6, Run(1, 50.0): 5}
    for row in rows.values():
        assert row["tokens_per_second"][0] > 0
        assert row["first_token_ms"]["p99"] >= row["first_token_ms"]["p50"] > 0
    assert any("50 requests/s" in line for line in lines)


def test_dead_server_is_one_line_with_its_last_words(tmp_path: Path) -> None:
    with (
        pytest.raises(GPTError, match=r"^the server: .* ended with 2: .*nowhere"),
        start_server(tmp_path / "nowhere", "fp32"),
    ):
        pass


def test_characters_are_counted_however_the_stream_is_cut() -> None:
    async def handle(writer: asyncio.StreamWriter, prompt: str) -> None:
        data = event("ab") + event("") + b": a comment\n\n" + event("cde") + b"data: [DONE]\n\n"
        writer.write(HEAD + b"".join(chunked(data[i : i + 7]) for i in range(0, len(data), 7)) + b"0\r\n\r\n")

    (answer,) = run(handle, ["x"])
    assert sum(count for _, count in answer.arrived) == 5
    assert answer.sent < answer.arrived[0][0]


def test_broken_answer_is_an_error() -> None:
    for data, message in (
        (b"HTTP/1.1 429 Too Many\r\ncontent-length: 4\r\n\r\nbusy", "answers 429: busy"),
        (HEAD + chunked(b'data: {"error": {"message": "broken"}}\n\n') + b"0\r\n\r\n", "broken"),
        (HEAD + chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n", "without any text"),
        (HEAD + chunked(event("abc")), "broke its answer off"),
    ):

        async def handle(writer: asyncio.StreamWriter, prompt: str, data: bytes = data) -> None:
            writer.write(data)

        with pytest.raises(GPTError, match=message):
            run(handle, ["x"])


@pytest.mark.parametrize(("arrivals", "most"), [([], 2), ([0.0] * 6, 6)])
def test_closed_loop_holds_its_concurrency_and_open_loop_does_not_wait(arrivals: list[float], most: int) -> None:
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

    answers = run(handle, list("abcdef"), arrivals=arrivals, concurrency=2)
    assert [[count for _, count in answer.arrived] for answer in answers] == [[1]] * 6
    assert peak == most


def test_latencies_and_throughput_by_hand() -> None:
    one = Answer(10.0, [(10.5, 1), (10.6, 1), (11.0, 4)])  # gaps: 0.1, and 4 tokens that share 0.4
    other = Answer(10.2, [(12.0, 2)])  # in one piece
    later = Answer(50.0, [(50.1, 1), (52.0, 1)])
    found = summarize_answers([[one, other], [later]])
    assert found["requests"] == 3
    assert found["tokens_per_second"] == [8 / 2, 2 / 2]
    first = sorted([500.0, 1800.0, 100.0])
    assert found["first_token_ms"] == pytest.approx({"p50": first[1], "p99": np.percentile(first, 99)})
    gaps = [100.0] * 5 + [1900.0]
    assert found["inter_token_ms"] == pytest.approx({"p50": 100.0, "p99": np.percentile(gaps, 99)})
    assert summarize_answers([[other]])["inter_token_ms"] is None


def test_prompts_have_the_wanted_lengths_and_arrivals_are_a_poisson_process() -> None:
    alphabet = ["a", "b", "\n"]
    prompts = random_prompts(alphabet, [3, 8], 50, [1, 2])
    assert {len(prompt) for prompt in prompts} == {3, 8}
    assert set("".join(prompts)) == set(alphabet)
    assert prompts == random_prompts(alphabet, [3, 8], 50, [1, 2]) != random_prompts(alphabet, [3, 8], 50, [1, 3])
    gaps = np.diff(np.array(poisson_arrivals(20.0, 20_000, [7])), prepend=0.0)
    assert gaps.min() > 0
    assert gaps.mean() == pytest.approx(1 / 20, rel=0.03)
    assert gaps.std() == pytest.approx(1 / 20, rel=0.03)  # exponential: as large as the mean
