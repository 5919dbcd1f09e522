"""Responses in progress: from the engine's thread to the event loop, and to the end of the server."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Protocol

from gpt.config import SamplingParams
from gpt.errors import explained
from gpt.generation import SampledToken, TextChunk
from gpt.generation.request import EngineClosedError, OnChunks, QueueFullError, Request
from gpt.serving.engine import ServingEngine
from gpt.serving.http.limits import Limits
from gpt.serving.http.metrics import Metrics
from gpt.serving.http.models import Models
from gpt.serving.http.protocol import APIError

REASONS = {"length": "length", "window": "length", "stop": "stop", "end": "stop"}
"""The protocol's `finish_reason` for each reason why a sequence ended."""
CLIENT_GONE = 499
"""The status counted if the client disconnected; nobody receives it."""
POLL_SECONDS = 0.05
CHUNK_SECONDS = 0.03
"""Time between two chunks of a stream: a reader sees no difference, and fewer take less from the computation.

The first chunk and the last do not wait.
"""
UNHURRIED_STREAMS = 8
"""Above this many sequences the interval grows in proportion, so that all together send a bounded number of chunks."""
Receiver = Callable[[list[TextChunk]], None]


class TokenStream(Protocol):
    """Holds back tokens until the text they belong to is shown."""

    def feed(self, tokens: Iterable[SampledToken]) -> None:
        """Add tokens in the order of the text."""

    def take(self, length: int) -> Any:
        """Return what belongs to the first `length` characters and was not returned before."""


class EventLoopBridge:
    """Carries chunks from the engine's thread to the event loop: the first and the last of each request at once.

    The others are delivered together, every `CHUNK_SECONDS`: each time the loop wakes up, it takes a core from the
    computation, and finds little of its own in the caches.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting: dict[Receiver, list[TextChunk]] = {}
        self._urgent: set[Receiver] = set()
        self._is_idle = True  # no delivery is planned

    def to(self, receiver: Receiver) -> OnChunks:
        """Return a callback for the engine that makes the running event loop call `receiver`; all have one loop."""
        loop, is_first = asyncio.get_running_loop(), True

        def put(chunks: list[TextChunk]) -> None:
            nonlocal is_first
            is_urgent, is_first = is_first or chunks[-1].finish is not None, False
            with self._lock:
                self._waiting.setdefault(receiver, []).extend(chunks)
                if not (is_urgent or self._is_idle):
                    return
                is_woken = bool(self._urgent)
                self._urgent.add(receiver)
                if is_woken:
                    return
            self._wake(loop)

        return put

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.call_soon_threadsafe(self._deliver_urgent, loop)
        except RuntimeError:
            # the loop is closed, and its receivers with it
            with self._lock:
                self._waiting, self._urgent = {}, set()

    def _deliver_urgent(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            urgent = {receiver: self._waiting.pop(receiver, []) for receiver in self._urgent}
            self._urgent, was_idle, self._is_idle = set(), self._is_idle, False
        if was_idle:
            loop.call_later(CHUNK_SECONDS, self._deliver_all, loop)
        for receiver, chunks in urgent.items():
            if chunks:
                receiver(chunks)

    def _deliver_all(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, {}
            self._is_idle = not waiting
        if waiting:
            loop.call_later(CHUNK_SECONDS * max(1.0, len(waiting) / UNHURRIED_STREAMS), self._deliver_all, loop)
        for receiver, chunks in waiting.items():
            receiver(chunks)


@dataclass
class Choice:
    """One completion while it is generated.

    Attributes:
        logprobs: None if they are not asked for.
        tokens: number of tokens sampled so far.
        finish: why it ended; None until then.
    """

    index: int
    seed: int
    logprobs: TokenStream | None
    tokens: int = 0
    finish: str | None = None
    request: Request | None = None
    _text: list[str] = field(default_factory=list)
    _taken: int = 0
    _ended: bool = False

    def begin(self, prompt: str, tokens: Sequence[SampledToken]) -> None:
        """Show the prompt, with log-probabilities if they are asked for."""
        self._text.append(prompt)
        if self.logprobs is not None:
            self.logprobs.feed(tokens)

    def add(self, chunks: Sequence[TextChunk]) -> None:
        sampled = [chunk.token for chunk in chunks if chunk.token is not None]
        self.tokens += len(sampled)
        if self.logprobs is not None:
            self.logprobs.feed(sampled)
        self._text += (chunk.text for chunk in chunks)
        self.finish = chunks[-1].finish

    def take(self) -> dict[str, Any] | None:
        """Return what is new since the last call, in the protocol's shape; None if nothing is."""
        text, self._text = "".join(self._text), []
        ends = self.finish is not None and not self._ended
        if not text and not ends:
            return None
        self._taken, self._ended = self._taken + len(text), ends
        return {
            "index": self.index,
            "text": text,
            "seed": self.seed,
            "logprobs": None if self.logprobs is None else self.logprobs.take(self._taken),
            "finish_reason": REASONS.get(self.finish or ""),
        }


class Response:
    """The completions of one request.

    Attributes:
        changed: set when a choice has grown.
        ended: set when every choice has ended.
        prompt_tokens: tokens of the prompts, each counted once.
        values: most tokens and log-probabilities that it can hold.
        begun: time of the request, by the monotonic clock.
        first: time of its first token, by the same clock; None until then.
    """

    def __init__(self, engine: ServingEngine, bridge: EventLoopBridge, prompt_tokens: int, values: int) -> None:
        self.choices: list[Choice] = []
        self.changed, self.ended = asyncio.Event(), asyncio.Event()
        self.prompt_tokens, self.values = prompt_tokens, values
        self.begun = time.monotonic()
        self.first: float | None = None
        self._engine, self._bridge = engine, bridge

    def start(self, choice: Choice, prompt: str | Sequence[int], params: SamplingParams) -> None:
        """Request one more choice from the engine.

        Raises:
            APIError: the engine accepts no more requests.
            GPTError: the prompt does not fit, see `ServingEngine.submit`.
        """

        def take(chunks: list[TextChunk]) -> None:
            choice.add(chunks)
            self.first = self.first or time.monotonic()
            self.changed.set()
            if choice.finish is not None and self.finished:
                self.ended.set()

        try:
            choice.request = self._engine.submit(prompt, params, self._bridge.to(take))
        except QueueFullError as error:
            raise APIError(429, f"the server is busy: {error}", code="queue_full") from None
        except EngineClosedError as error:
            raise APIError(503, str(error)) from None
        self.choices.append(choice)

    def cancel(self) -> None:
        for choice in self.choices:
            if choice.finish is None and choice.request is not None:
                self._engine.cancel(choice.request)

    def check(self) -> None:
        """Raise APIError if a choice has failed, or was cancelled because the server is being stopped."""
        for choice in self.choices:
            if choice.finish == "cancelled":
                raise APIError(503, "the server is being stopped; the answer is not complete")
            if choice.finish == "error":
                reason = choice.request.error if choice.request is not None else None
                why = "" if reason is None else f": {explained(reason)}"
                raise APIError(500, f"the text could not be generated{why}")

    @property
    def finished(self) -> bool:
        """Whether every choice has ended."""
        return all(choice.finish is not None for choice in self.choices)

    @property
    def usage(self) -> dict[str, int]:
        """Token counts, as the protocol shows them."""
        completion = sum(choice.tokens for choice in self.choices)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self.prompt_tokens + completion,
        }


class ResponseRegistry:
    """All responses in progress, until their resources are freed; refuses new ones once it is `stopping`.

    Args:
        max_values: most tokens and log-probabilities that all hold together, see `Limits.values`.
    """

    def __init__(self, metrics: Metrics, max_values: int) -> None:
        self.metrics, self._max_values = metrics, max_values
        self.stopping = False
        self.active: set[Response] = set()
        self._admitted = 0
        self._bridge = EventLoopBridge()

    def check(self) -> None:
        """Raise APIError if the server is being stopped."""
        if self.stopping:
            raise APIError(503, "the server is being stopped; ask another one, or later")

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Let a request in, for whose end a shutdown waits; see `check`."""
        self.check()
        self._admitted += 1
        try:
            yield
        finally:
            self._admitted -= 1

    def open(self, engine: ServingEngine, prompt_tokens: int, values: int, cleanup: AsyncExitStack) -> Response:
        """Return a response without choices, whose resources `cleanup` frees.

        Raises:
            APIError: there would be too many tokens and log-probabilities in all responses.
        """
        if values + sum(other.values for other in self.active) > self._max_values:
            raise APIError(429, "the server is busy: it holds as many answers as it accepts", code="queue_full")
        response = Response(engine, self._bridge, prompt_tokens, values)
        cleanup.callback(self._close, response)
        self.active.add(response)
        return response

    def _close(self, response: Response) -> None:
        """Free a response's resources, whether it was sent or not."""
        failed = any(choice.finish in ("error", "cancelled") for choice in response.choices)
        status = CLIENT_GONE if not (response.choices and response.finished) else 500 if failed else 200
        self.metrics.count(status, response.prompt_tokens, response.begun, response.first)
        response.cancel()
        self.active.discard(response)

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, and return when all have ended; after this many seconds they are cancelled."""
        self.stopping = True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._admitted or self.active:
                    await asyncio.sleep(POLL_SECONDS)
        for response in self.active:
            response.cancel()


@dataclass(frozen=True)
class Services:
    """What the endpoints share; `executor` has one thread, whose work competes with the engine for cores."""

    models: Models
    limits: Limits
    responses: ResponseRegistry
    executor: Executor


async def until_answered() -> AsyncIterator[AsyncExitStack]:
    """Yield a stack whose callbacks run once the response was sent, or can no longer be."""
    async with AsyncExitStack() as stack:
        yield stack
