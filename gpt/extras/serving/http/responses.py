"""Responses in progress: the engine's thread adds tokens to them, and the event loop sends their
text.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
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
"""Seconds between two chunks of a stream. A reader does not notice the interval, and each chunk
takes a core from the computation. The first chunk and the last do not wait.
"""
UNHURRIED_RESPONSES = 8
"""Above this many responses the interval grows in proportion, so that all together send a bounded
number of chunks.
"""
MAX_RECEIVED = 64
"""Most engine steps whose tokens wait until they are described. In the playground each token holds
the log-probabilities of the whole vocabulary, and its description only those that are shown.
"""


@dataclass(frozen=True)
class Part:
    """What is new of a choice.

    Attributes:
        logprobs: descriptions of its tokens; None where none were asked for.
        finish_reason: why the choice ended; None until its last part.
    """

    index: int
    text: str
    seed: int
    logprobs: list[Any] | None
    finish_reason: str | None


@dataclass
class Choice:
    """One completion while it is generated.

    The engine's thread calls `add`. The event loop and the worker's thread call the other methods.

    Attributes:
        logprobs: a `LogprobsStream`, or another object with its methods `feed` and `take`, which
            describes tokens; None where no log-probabilities were asked for.
        tokens: number of tokens received so far.
        finish: why the sequence ended, as the engine says it; None until then.
        request: what the engine returned for `cancel`.
    """

    index: int
    seed: int
    logprobs: Any
    tokens: int = 0
    finish: str | None = None
    request: Request | None = None
    _received: deque[list[TextChunk]] = field(default_factory=deque)  # added by the engine's thread
    _text: str = ""  # not taken yet
    _taken: int = 0  # characters
    _ended: bool = False  # the last part was taken
    _lock: threading.Lock = field(default_factory=threading.Lock)  # guards `_text` and `logprobs`

    def begin(self, prompt: str, tokens: Sequence[SampledToken]) -> None:
        """Show the prompt, with log-probabilities if they are asked for."""
        self._text = prompt
        if self.logprobs is not None:
            self.logprobs.feed(tokens)

    def add(self, chunks: list[TextChunk]) -> bool:
        """Add the chunks of a step, and return whether to `receive` them soon.

        It takes no lock, since the engine's thread, which computes all sequences, must not wait.
        """
        is_first = not self.tokens and not self._received
        self._received.append(chunks)
        self.finish = chunks[-1].finish
        return is_first or self.finish is not None or len(self._received) >= MAX_RECEIVED

    def receive(self) -> None:
        """Join the texts of the chunks, and describe their tokens."""
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

    def take(self) -> Part | None:
        """Return what is new since the last call; None if nothing is."""
        with self._lock:
            # `finish` is read before the chunks: the last chunk was added before `finish` was set
            finish = self.finish
            self._receive()
            text = self._text
            self._text = ""
            is_last = finish is not None and not self._ended
            if not text and not is_last:
                return None
            self._taken += len(text)
            self._ended = is_last
            logprobs = None if self.logprobs is None else self.logprobs.take(self._taken)
            finish_reason = None if finish is None else REASONS.get(finish)
            return Part(self.index, text, self.seed, logprobs, finish_reason)


class Response:
    """The completions of one request.

    Attributes:
        prompt_tokens: tokens of the prompts, each counted once.
        values: most tokens and log-probabilities that it can hold.

    Args:
        active: all responses that are under way; their number decides how often a chunk is sent.
    """

    def __init__(
        self,
        engine: EngineThread,
        prompt_tokens: int,
        values: int,
        active: "set[Response]",
        worker: Worker,
    ) -> None:
        self.choices: list[Choice] = []
        self.prompt_tokens = prompt_tokens
        self.values = values
        self._engine = engine
        self._active = active
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

    def start(self, choice: Choice, prompt: str | Sequence[int], params: SamplingParams) -> None:
        """Request one more choice from the engine.

        Raises:
            APIError: the engine accepts no more requests.
            GPTError: the prompt does not fit, see `EngineThread.submit`.
        """
        on_chunks = partial(self._add, choice)
        try:
            choice.request = self._engine.submit(prompt, params, on_chunks)
        except QueueFullError as error:
            raise APIError(429, f"the server is busy: {error}", code="queue_full") from None
        except EngineClosedError as error:
            raise APIError(503, str(error)) from None
        self.choices.append(choice)

    def _add(self, choice: Choice, chunks: list[TextChunk]) -> None:
        """Add chunks to a choice, in the engine's thread, and have the event loop receive them if
        it should.
        """
        if choice.add(chunks):
            self._loop.call_soon_threadsafe(self._receive, choice)

    def _receive(self, choice: Choice) -> None:
        if choice.logprobs is None:
            choice.receive()
            self._changed.set()
        else:
            # not here, on the event loop: describing many tokens would keep other requests waiting
            self._worker.start(choice.receive, self._changed.set)

    async def wait(self) -> None:
        """Wait for the first token or the end of a choice, but no longer than the interval between
        two chunks.
        """
        seconds = CHUNK_SECONDS * max(1.0, len(self._active) / UNHURRIED_RESPONSES)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        self._changed.clear()

    async def parts(self) -> AsyncIterator[Part]:
        """Yield the parts of the choices as they come; raise APIError if a choice ended early."""
        while True:
            # read before the parts are taken: what comes after the last `take` needs another round
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

    async def work(self, part: Part, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function whose work grows with a part of this response, and return its result."""
        size = len(part.text) if part.logprobs is None else self.values
        return await self._worker.run(size, function, *arguments)

    def cancel(self) -> None:
        """Cancel the choices that are still generated."""
        for choice in self.choices:
            if choice.finish is None and choice.request is not None:
                self._engine.cancel(choice.request)

    def check(self) -> None:
        """Raise APIError if a choice has failed, or was cancelled because the server is being
        stopped.
        """
        for choice in self.choices:
            if choice.finish not in ("error", "cancelled"):
                continue
            message = "the text could not be generated"
            if choice.request is not None and choice.request.error is not None:
                message += f": {explained(choice.request.error)}"
            code = CANCELLED if choice.finish == "cancelled" else None
            raise APIError(500, message, code=code)

    @property
    def finished(self) -> bool:
        """Whether the engine has ended all choices; their last parts may wait to be taken."""
        return all(choice.finish is not None for choice in self.choices)

    @property
    def usage(self) -> dict[str, int]:
        """The token counts so far, as the protocol shows them."""
        completion = sum(choice.tokens for choice in self.choices)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self.prompt_tokens + completion,
        }


@dataclass(frozen=True)
class Services:
    """What the endpoints share.

    Attributes:
        executor: computes with a model outside the engine, with which it competes for cores: so it
            has one thread.
        worker: reads long requests and writes long answers.
        active: the responses that are under way.
    """

    models: Models
    limits: Limits
    executor: Executor
    worker: Worker
    active: set[Response] = field(default_factory=set)

    @contextmanager
    def respond(self, engine: EngineThread, prompt_tokens: int, values: int) -> Iterator[Response]:
        """Yield a new response without choices, and end it afterwards, whether it was sent or not.

        Raises:
            APIError: there would be too many tokens and log-probabilities in all responses.
        """
        if values > self.limits.values:
            what = f"{values} tokens and log-probabilities of the answer, the prompt in it included"
            limit = f"more than this server's limit of {self.limits.values}"
            raise APIError(400, f"max_tokens: {what}, {limit}", "max_tokens")
        held = sum(other.values for other in self.active)
        if held + values > self.limits.values:
            message = "the server is busy: it holds as many answers as it accepts"
            raise APIError(429, message, code="queue_full")
        response = Response(engine, prompt_tokens, values, self.active, self.worker)
        self.active.add(response)
        try:
            yield response
        finally:
            response.cancel()
            self.active.discard(response)


async def until_answered() -> AsyncIterator[AsyncExitStack]:
    """Yield a stack that is closed once the response was sent, or can no longer be: a dependency of
    endpoints.
    """
    async with AsyncExitStack() as stack:
        yield stack
