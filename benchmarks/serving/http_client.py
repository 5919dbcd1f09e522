"""A process that sends load to a server of the OpenAI completions protocol. Arguments: URL, MODEL.

Each line of JSON on its input is a `Load`; the answers are a line of JSON too.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import h11

from benchmarks.processes import answer_requests
from benchmarks.serving.load import Answer, Load, to_json
from gpt.errors import GPTError


class Client:
    """Streams completions over HTTP, a connection for each."""

    def __init__(self, url: str, model: str) -> None:
        self._url, self._model = urlsplit(url), model

    async def run(self, load: Load) -> list[Answer]:
        """Send all requests when they are due; return the answers.

        Raises:
            ConnectionError: a request was refused, or its answer broken off.
        """
        start, free = time.perf_counter(), asyncio.Semaphore(load.concurrency)
        tasks = []
        async with asyncio.TaskGroup() as group:
            for number, prompt in enumerate(load.prompts):
                if load.arrivals:
                    due = start + load.arrivals[number]
                    await asyncio.sleep(due - time.perf_counter())
                else:
                    await free.acquire()
                    due = time.perf_counter()
                tasks.append(group.create_task(self._complete(prompt, load, Answer(due))))
                tasks[-1].add_done_callback(lambda _: free.release())
        return [task.result() for task in tasks]

    async def _complete(self, prompt: str, load: Load, answer: Answer) -> Answer:
        sampling = {"max_tokens": load.tokens, "temperature": load.temperature}
        body = json.dumps({"model": self._model, "prompt": prompt, "stream": True, **sampling}).encode()
        reader, writer = await asyncio.open_connection(self._url.hostname, self._url.port)
        try:
            writer.write(b"".join(self._request(connection := h11.Connection(h11.CLIENT), body)))
            rest = b""
            while True:
                event = connection.next_event()
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
                elif isinstance(event, h11.EndOfMessage):
                    break
        except h11.RemoteProtocolError as error:
            raise ConnectionError(f"the server broke its answer off: {error}") from None
        finally:
            writer.close()
        if not answer.arrived:
            raise ConnectionError("the server answered without any text")
        return answer

    def _request(self, connection: h11.Connection, body: bytes) -> Iterator[bytes]:
        headers = {"Host": self._url.netloc, "Content-Type": "application/json", "Content-Length": str(len(body))}
        target = f"{self._url.path.rstrip('/')}/v1/completions"
        request = h11.Request(method="POST", target=target, headers=[*headers.items(), ("Connection", "close")])
        for event in (request, h11.Data(data=body), h11.EndOfMessage()):
            yield connection.send(event) or b""


def _count_characters(line: bytes) -> int:
    """Return how many characters of text an event brings, by its line of the stream.

    Raises:
        ConnectionError: it is an error.
    """
    data = line.removeprefix(b"data:").strip()
    if not line.startswith(b"data:") or data == b"[DONE]":
        return 0
    chunk = json.loads(data)
    if "error" in chunk:
        raise ConnectionError(f"the server answers {chunk['error']}")
    return sum(len(choice.get("text") or "") for choice in chunk["choices"])


def main() -> Callable[..., dict[str, Any]]:
    """Return what sends load and answers when its answers came."""
    client = Client(sys.argv[1], sys.argv[2])

    def answer(**load: Any) -> dict[str, Any]:
        try:
            return to_json(asyncio.run(client.run(Load(**load))))
        except* OSError as errors:
            failure = str(errors.exceptions[0])
        raise GPTError(failure)

    return answer


if __name__ == "__main__":
    answer_requests(main)
