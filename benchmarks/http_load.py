"""Requests to a server of the OpenAI completions protocol, and the times of their answers."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import h11
import numpy as np
from numpy.typing import NDArray

from gpt.system.errors import GPTError

TEMPERATURE = 0.8


@dataclass
class Answer:
    """When a request was due, and when which number of its tokens arrived, in seconds of one clock."""

    sent: float
    arrived: list[tuple[float, int]] = field(default_factory=list)


async def send(
    url: str, prompts: Sequence[str], tokens: int, concurrency: int = 1, arrivals: Sequence[float] = ()
) -> list[Answer]:
    """Stream a completion of `tokens` characters for each prompt, on a connection of its own.

    With `arrivals` (open loop) each request is sent so many seconds after the start, whatever has been answered by
    then; without (closed loop) `concurrency` requests are always in flight.

    Raises:
        GPTError: a request was refused, or its answer broken off.
    """
    start, free = time.perf_counter(), asyncio.Semaphore(concurrency)
    tasks = []
    try:
        async with asyncio.TaskGroup() as group:
            for number, prompt in enumerate(prompts):
                if arrivals:
                    due = start + arrivals[number]
                    await asyncio.sleep(due - time.perf_counter())
                else:
                    await free.acquire()
                    due = time.perf_counter()
                tasks.append(group.create_task(_complete(url, prompt, tokens, Answer(due))))
                tasks[-1].add_done_callback(lambda _: free.release())
    except* OSError as errors:
        failure = str(errors.exceptions[0])
    else:
        return [task.result() for task in tasks]
    raise GPTError(failure)


async def _complete(url: str, prompt: str, tokens: int, answer: Answer) -> Answer:
    parts = urlsplit(url)
    body = json.dumps({"prompt": prompt, "stream": True, "max_tokens": tokens, "temperature": TEMPERATURE}).encode()
    fields = {"Host": parts.netloc, "Content-Type": "application/json", "Content-Length": str(len(body))}
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    connection, rest, status = h11.Connection(h11.CLIENT), b"", 0
    try:
        request = h11.Request(method="POST", target="/v1/completions", headers=list(fields.items()))
        for part in (request, h11.Data(data=body), h11.EndOfMessage()):
            writer.write(connection.send(part) or b"")
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                connection.receive_data(await reader.read(1 << 16))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                now = time.perf_counter()
                *lines, rest = (rest + event.data).split(b"\n")
                if status != 200:
                    raise ConnectionError(f"the server answers {status}: {event.data.decode()[:300]}")
                if count := sum(map(_count_characters, lines)):
                    answer.arrived.append((now, count))
    except h11.RemoteProtocolError as error:
        raise ConnectionError(f"the server broke its answer off: {error}") from None
    finally:
        writer.close()
    if not answer.arrived:
        raise ConnectionError("the server answered without any text")
    return answer


def _count_characters(line: bytes) -> int:
    """Return how many characters of text a line of the stream brings; raise ConnectionError if it is an error."""
    data = line.removeprefix(b"data:").strip()
    if not line.startswith(b"data:") or data == b"[DONE]":
        return 0
    chunk = json.loads(data)
    if "error" in chunk:
        raise ConnectionError(f"the server answers {chunk['error']}")
    return sum(len(choice.get("text") or "") for choice in chunk["choices"])


def random_prompts(alphabet: Sequence[str], lengths: Sequence[int], count: int, seed: Sequence[int]) -> list[str]:
    """Return random texts, whose lengths are chosen at random from `lengths`."""
    random = np.random.default_rng(seed)
    return ["".join(random.choice(alphabet, size=random.choice(lengths))) for _ in range(count)]


def poisson_arrivals(rate: float, count: int, seed: Sequence[int]) -> list[float]:
    """Return the arrival times, in seconds, of a Poisson process with `rate` requests per second."""
    times: list[float] = np.random.default_rng(seed).exponential(1 / rate, count).cumsum().tolist()
    return times


def summarize_answers(rounds: Sequence[Sequence[Answer]]) -> dict[str, Any]:
    """Return the throughput of each round, and percentiles of the latencies of all, in milliseconds.

    Time to first token counts from when a request was due, so that a client that falls behind hides nothing. Tokens
    that arrive together share the time since those before them.
    """
    throughput, first, gaps = [], list[float](), [np.zeros(0)]
    for answers in rounds:
        parts = [np.array(answer.arrived, dtype=np.float64) for answer in answers]  # (time, tokens) in each row
        seconds = max(part[-1, 0] for part in parts) - min(answer.sent for answer in answers)
        throughput.append(float(sum(part[:, 1].sum() for part in parts) / seconds))
        first += [part[0, 0] - answer.sent for part, answer in zip(parts, answers, strict=True)]
        gaps += [np.repeat(np.diff(part[:, 0]) / part[1:, 1], part[1:, 1].astype(int)) for part in parts]
    streamed = np.concatenate(gaps)
    return {
        "requests": sum(map(len, rounds)),
        "tokens_per_second": throughput,
        "first_token_ms": _percentiles(first),
        "inter_token_ms": _percentiles(streamed) if len(streamed) else None,
    }


def _percentiles(seconds: Sequence[float] | NDArray[np.float64]) -> dict[str, float]:
    median, high = (np.percentile(seconds, (50, 99)) * 1000).tolist()
    return {"p50": median, "p99": high}
