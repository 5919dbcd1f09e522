"""Responses in progress: what the engine's thread writes and the event loop sends."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from gpt.config import SamplingParams
from gpt.extras.serving.engine_thread import EngineThread
from gpt.extras.serving.http.bodies import T, Worker
from gpt.extras.serving.http.limits import Limits
from gpt.extras.serving.http.models import Models
from gpt.extras.serving.http.protocol import CANCELLED, APIError
from gpt.generation.sequence import EngineClosedError, QueueFullError, Request, TextChunk
from gpt.generation.tokens import SampledToken
from gpt.system.errors import explained

REASONS = {"length": "length", "window": "length", "stop": "stop", "end": "stop"}
"""The protocol's `finish_reason` for each reason why a sequence ended."""
CLIENT_GONE = 499
"""The status of an answer whose client has disconnected; nobody receives it."""
CHUNK_SECONDS = 0.03
"""Time between two chunks of a stream: a reader sees no difference, and each time the loop wakes up, it takes a core
from the computation. The first chunk and the last do not wait.
"""
UNHURRIED_RESPONSES = 8
"""Above this many responses the interval grows in proportion, so that all together send a bounded number of chunks."""
MAX_RECEIVED = 64
"""Steps whose tokens wait for a reader: in the playground each holds the log-probabilities of a vocabulary."""


@dataclass
class Choice:
    """One completion while it is generated.

    Attributes:
        logprobs: a `LogprobsStream`, or what else describes tokens; None: nothing does.
        tokens: number of tokens sampled so far.
        finish: why it ended; None until then.
    """

    index: int
    seed: int
    logprobs: Any
    tokens: int = 0
    finish: str | None = None
    request: Request | None = None
    _received: deque[list[TextChunk]] = field(default_factory=deque)  # by the engine's thread
    _text: str = ""
    _taken: int = 0
    _ended: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)  # `logprobs` is used in two threads

    def begin(self, prompt: str, tokens: Sequence[SampledToken]) -> None:
        """Show the prompt, with log-probabilities if they are asked for."""
        self._text = prompt
        if self.logprobs is not None:
            self.logprobs.feed(tokens)

    def add(self, chunks: list[TextChunk]) -> bool:
        """Add chunks, in the engine's thread; return whether to `receive` them soon."""
        is_first = not self.tokens and not self._received
        self._received.append(chunks)
        self.finish = chunks[-1].finish
        return is_first or self.finish is not None or len(self._received) >= MAX_RECEIVED

    def receive(self) -> None:
        with self._lock:
            self._receive()

    def _receive(self) -> None:
        while self._received:
            chunks = self._received.popleft()
            sampled = [chunk.token for chunk in chunks if chunk.token is not None]
            self.tokens += len(sampled)
            if self.logprobs is not None:
                self.logprobs.feed(sampled)
            self._text += "".join(chunk.text for chunk in chunks)

    def take(self) -> dict[str, Any] | None:
        """Return what is new since the last call, in the protocol's shape; None if nothing is."""
        with self._lock:
            return self._take()

    def _take(self) -> dict[str, Any] | None:
        finish = self.finish  # before the chunks, of which the last comes with it
        self._receive()
        text, self._text = self._text, ""
        ends = finish is not None and not self._ended
        if not text and not ends:
            return None
        self._taken, self._ended = self._taken + len(text), ends
        return {
            "index": self.index,
            "text": text,
            "seed": self.seed,
            "logprobs": None if self.logprobs is None else self.logprobs.take(self._taken),
            "finish_reason": REASONS.get(finish or ""),
        }


class Response:
    """The completions of one request.

    Attributes:
        prompt_tokens: tokens of the prompts, each counted once.
        values: most tokens and log-probabilities that it can hold.
    """

    def __init__(
        self, engine: EngineThread, prompt_tokens: int, values: int, active: "set[Response]", worker: Worker
    ) -> None:
        self.choices: list[Choice] = []
        self.prompt_tokens, self.values = prompt_tokens, values
        self._engine, self._active, self._worker = engine, active, worker
        self._changed = asyncio.Event()

    def start(self, choice: Choice, prompt: str | Sequence[int], params: SamplingParams) -> None:
        """Request one more choice from the engine.

        Raises:
            APIError: the engine accepts no more requests.
            GPTError: the prompt does not fit, see `EngineThread.submit`.
        """
        loop = asyncio.get_running_loop()

        def receive() -> None:
            if choice.logprobs is None:
                choice.receive()
                self._changed.set()
            else:  # describing many tokens would keep others waiting
                self._worker.start(choice.receive, self._changed.set)

        def take(chunks: list[TextChunk]) -> None:
            if choice.add(chunks):
                loop.call_soon_threadsafe(receive)

        try:
            choice.request = self._engine.submit(prompt, params, take)
        except QueueFullError as error:
            raise APIError(429, f"the server is busy: {error}", code="queue_full") from None
        except EngineClosedError as error:
            raise APIError(503, str(error)) from None
        self.choices.append(choice)

    async def wait(self) -> None:
        """Wait for a choice's first token or end, or else until more is worth a chunk."""
        seconds = CHUNK_SECONDS * max(1.0, len(self._active) / UNHURRIED_RESPONSES)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        self._changed.clear()

    async def parts(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the new parts of the choices, see `Choice.take`; raise APIError where one ended early."""
        while True:
            finished = self.finished
            for choice in self.choices:
                size = 0 if choice.logprobs is None else self.values
                part = await self._worker.run(size, choice.take)
                if part is not None:
                    yield part
            self.check()
            if finished:
                return
            await self.wait()

    async def work(self, part: dict[str, Any], function: Callable[..., T], *arguments: Any) -> T:
        """Return what a function makes of a part of this response."""
        size = len(part["text"]) if part["logprobs"] is None else self.values
        return await self._worker.run(size, function, *arguments)

    def cancel(self) -> None:
        for choice in self.choices:
            if choice.finish is None and choice.request is not None:
                self._engine.cancel(choice.request)

    def check(self) -> None:
        """Raise APIError if a choice has failed, or was cancelled because the server is being stopped."""
        for choice in self.choices:
            if choice.finish in ("error", "cancelled"):
                reason = choice.request.error if choice.request is not None else None
                why = "" if reason is None else f": {explained(reason)}"
                code = CANCELLED if choice.finish == "cancelled" else None
                raise APIError(500, f"the text could not be generated{why}", code=code)

    @property
    def finished(self) -> bool:
        return all(choice.finish is not None for choice in self.choices)

    @property
    def usage(self) -> dict[str, int]:
        """Token counts of what was taken, as the protocol shows them."""
        completion = sum(choice.tokens for choice in self.choices)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self.prompt_tokens + completion,
        }


@dataclass(frozen=True)
class Services:
    """What the endpoints share; `executor` has one thread, whose work competes with the engine for cores."""

    models: Models
    limits: Limits
    executor: Executor
    worker: Worker
    active: set[Response] = field(default_factory=set)

    @contextmanager
    def respond(self, engine: EngineThread, prompt_tokens: int, values: int) -> Iterator[Response]:
        """Give a response without choices, and end it afterwards, whether it was sent or not.

        Raises:
            APIError: there would be too many tokens and log-probabilities in all responses.
        """
        if values > self.limits.values:
            what = f"{values} tokens and log-probabilities of the answer, the prompt in it included"
            limit = f"more than this server's limit of {self.limits.values}"
            raise APIError(400, f"max_tokens: {what}, {limit}", "max_tokens")
        if values + sum(other.values for other in self.active) > self.limits.values:
            raise APIError(429, "the server is busy: it holds as many answers as it accepts", code="queue_full")
        response = Response(engine, prompt_tokens, values, self.active, self.worker)
        self.active.add(response)
        try:
            yield response
        finally:
            response.cancel()
            self.active.discard(response)


async def until_answered() -> AsyncIterator[AsyncExitStack]:
    """Yield a stack whose callbacks run once the response was sent, or can no longer be."""
    async with AsyncExitStack() as stack:
        yield stack
