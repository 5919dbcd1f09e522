"""Shut a server down: running requests finish before a deadline, new ones are refused."""

import asyncio
import contextlib
from typing import Protocol

from gpt.serving.http.answer import Answer
from gpt.serving.http.errors import APIError

POLL_SECONDS = 0.05


class Background(Protocol):
    """Work that goes on beside the requests."""

    @property
    def running(self) -> bool:
        """Return whether it has not ended."""

    def close(self) -> None:
        """Ask it to end."""


class Drain:
    """Counts the answers in progress, and refuses new ones during shutdown.

    Attributes:
        begun: whether the shutdown has begun.
        active: number of unfinished answers.

    Args:
        background: is asked to end too, and waited for; it is not ended by force.
    """

    def __init__(self, background: Background | None = None) -> None:
        self._background = background
        self.begun = False
        self.active: set[Answer] = set()

    def check(self) -> None:
        """Raise if the server is being stopped.

        Raises:
            APIError: it is.
        """
        if self.begun:
            raise APIError(503, "the server is being stopped; ask another one, or later")

    async def run(self, seconds: float) -> None:
        """Refuse new requests, and return when all have ended; after this many seconds they are cancelled."""
        self.begun = True
        if self._background is not None:
            self._background.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.active or (self._background is not None and self._background.running):
                    await asyncio.sleep(POLL_SECONDS)
        for answer in self.active:
            answer.cancel()
