"""Send requests to a server of the OpenAI completions protocol, and measure the times of their
answers.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import h11
import numpy as np
from numpy.typing import NDArray

from gpt.system.errors import GPTError

TEMPERATURE = 0.8
READ_BYTES = 1 << 16
"""Most bytes that are read from a connection at a time."""


@dataclass
class Answer:
    """The times of one answer, in seconds of one clock.

    Attributes:
        due: when its request was to be sent.
        arrived: when tokens arrived, and how many.
    """

    due: float
    arrived: list[tuple[float, int]] = field(default_factory=list)


async def send(
    url: str,
    prompts: Sequence[str],
    tokens: int,
    concurrency: int = 1,
    arrivals: Sequence[float] = (),
) -> list[Answer]:
    """Stream a completion of `tokens` characters for each prompt, each on a connection of its own.

    Args:
        concurrency: without `arrivals` (closed loop), so many requests are always in flight.
        arrivals: with them (open loop), each request is sent so many seconds after the start,
            whatever has been answered by then.

    Raises:
        GPTError: a request was refused, or its answer ended early.
    """
    start = time.perf_counter()
    free = asyncio.Semaphore(concurrency)
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
                task = group.create_task(_complete(url, prompt, tokens, due))
                task.add_done_callback(lambda _: free.release())
                tasks.append(task)
    except* OSError as errors:
        failure = str(errors.exceptions[0])
    else:
        return [task.result() for task in tasks]
    raise GPTError(failure)  # here, since an `except*` block would wrap it in a group


async def _complete(url: str, prompt: str, tokens: int, due: float) -> Answer:
    """Send one request, and return when the tokens of its answer arrived.

    Raises:
        ConnectionError: the server refused the request, or its answer ended early.
    """
    server = urlsplit(url)
    fields = {"prompt": prompt, "stream": True, "max_tokens": tokens, "temperature": TEMPERATURE}
    body = json.dumps(fields).encode()
    headers = [
        ("Host", server.netloc),
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
    ]
    request = h11.Request(method="POST", target="/v1/completions", headers=headers)
    reader, writer = await asyncio.open_connection(server.hostname, server.port)
    connection = h11.Connection(h11.CLIENT)
    try:
        for part in (request, h11.Data(data=body), h11.EndOfMessage()):
            writer.write(connection.send(part) or b"")
        arrived = [each async for each in _receive(connection, reader)]
    except h11.RemoteProtocolError as error:
        raise ConnectionError(f"the server broke its answer off: {error}") from None
    finally:
        writer.close()
    if not arrived:
        raise ConnectionError("the server answered without any text")
    return Answer(due, arrived)


async def _receive(
    connection: h11.Connection, reader: asyncio.StreamReader
) -> AsyncIterator[tuple[float, int]]:
    """Yield when characters of an answer arrived, and how many, until the answer ends."""
    status = 0
    rest = b""  # the beginning of a line whose end has not arrived yet
    while True:
        event = connection.next_event()
        if isinstance(event, h11.EndOfMessage):
            return
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(READ_BYTES))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            # Taken before the lines are parsed, which is the client's time and not the server's.
            now = time.perf_counter()
            if status != 200:
                reason = event.data.decode()[:300]
                raise ConnectionError(f"the server answers {status}: {reason}")
            *lines, rest = (rest + event.data).split(b"\n")
            count = sum(_count_characters(line) for line in lines)
            if count > 0:
                yield now, count


def _count_characters(line: bytes) -> int:
    """Return how many characters of text a line of the stream has.

    Raises:
        ConnectionError: the line is an error of the server.
    """
    if not line.startswith(b"data:"):
        return 0
    data = line.removeprefix(b"data:").strip()
    if data == b"[DONE]":
        return 0
    chunk = json.loads(data)
    if "error" in chunk:
        raise ConnectionError(f"the server answers {chunk['error']}")
    return sum(len(choice.get("text") or "") for choice in chunk["choices"])


def random_prompts(
    alphabet: Sequence[str], lengths: Sequence[int], count: int, seed: Sequence[int]
) -> list[str]:
    """Return random texts, whose lengths are chosen at random from `lengths`."""
    random = np.random.default_rng(seed)
    prompts = []
    for _ in range(count):
        length = random.choice(lengths)
        prompts.append("".join(random.choice(alphabet, size=length)))
    return prompts


def poisson_arrivals(rate: float, count: int, seed: Sequence[int]) -> list[float]:
    """Return the arrival times in seconds of a Poisson process with `rate` requests a second."""
    times: list[float] = np.random.default_rng(seed).exponential(1 / rate, count).cumsum().tolist()
    return times


def summarize_answers(rounds: Sequence[Sequence[Answer]]) -> dict[str, Any]:
    """Return the throughput of each round, and percentiles of the latencies of all, in
    milliseconds.

    Time to first token counts from when a request was due, so that a client that falls behind hides
    nothing. Tokens that arrive together share the time since those before them.
    """
    throughputs: list[float] = []
    first_token: list[float] = []
    gaps = [np.zeros(0)]  # concatenate needs at least one
    for answers in rounds:
        start = min(answer.due for answer in answers)
        end = 0.0
        num_tokens = 0.0
        for answer in answers:
            times, counts = np.array(answer.arrived, dtype=np.float64).T
            end = max(end, times[-1])
            num_tokens += counts.sum()
            first_token.append(times[0] - answer.due)
            gaps.append(np.repeat(np.diff(times) / counts[1:], counts[1:].astype(int)))
        throughputs.append(float(num_tokens / (end - start)))
    inter_token = np.concatenate(gaps)
    return {
        "requests": sum(len(answers) for answers in rounds),
        "tokens_per_second": throughputs,
        "first_token_ms": _percentiles(first_token),
        "inter_token_ms": _percentiles(inter_token) if len(inter_token) else None,
    }


def _percentiles(seconds: Sequence[float] | NDArray[np.float64]) -> dict[str, float]:
    median, high = (np.percentile(seconds, (50, 99)) * 1000).tolist()
    return {"p50": median, "p99": high}
