"""All responses in progress, and what the endpoints share."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Executor
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from gpt.serving.engine import ServingEngine
from gpt.serving.http.limits import Limits
from gpt.serving.http.metrics import Metrics
from gpt.serving.http.models import Models
from gpt.serving.http.protocol import APIError
from gpt.serving.http.responses import EventLoopBridge, Response

CLIENT_GONE = 499
"""The status counted if the client disconnected; nobody receives it."""
POLL_SECONDS = 0.05


class Background(Protocol):
    """Work that goes on beside the requests."""

    @property
    def running(self) -> bool:
        """Whether it has not ended."""

    def close(self) -> None:
        """Ask it to end."""


class ResponseRegistry:
    """All responses in progress, until their resources are freed; refuses new ones during shutdown.

    Attributes:
        stopping: the shutdown has begun.

    Args:
        max_values: most tokens and log-probabilities that all hold together, see `Limits.values`.
        background: is asked to end too, and waited for; it is not ended by force.
    """

    def __init__(self, metrics: Metrics, max_values: int, background: Background | None = None) -> None:
        self.metrics, self._max_values, self._background = metrics, max_values, background
        self.stopping = False
        self.active: set[Response] = set()
        self._admitted = 0
        self._bridge = EventLoopBridge()

    def check(self) -> None:
        """Raise if the server is being stopped.

        Raises:
            APIError: it is.
        """
        if self.stopping:
            raise APIError(503, "the server is being stopped; ask another one, or later")

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Let a request in, for whose end a shutdown waits.

        Raises:
            APIError: the server is being stopped.
        """
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
        if self._background is not None:
            self._background.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._admitted or self.active or (self._background is not None and self._background.running):
                    await asyncio.sleep(POLL_SECONDS)
        for response in self.active:
            response.cancel()


@dataclass(frozen=True)
class Services:
    """What the endpoints share.

    Attributes:
        executor: one thread for computations beside the engine's, since they compete with it for cores.
    """

    models: Models
    limits: Limits
    responses: ResponseRegistry
    executor: Executor


async def until_answered() -> AsyncIterator[AsyncExitStack]:
    """Yield a stack whose callbacks run once the response was sent, or can no longer be."""
    async with AsyncExitStack() as stack:
        yield stack
