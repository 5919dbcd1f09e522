"""The end of a server: what runs is finished, what comes is refused, and a deadline ends it."""

import asyncio
import contextlib

from gpt.serving.http.answer import Answer
from gpt.serving.http.errors import APIError

POLL_SECONDS = 0.05


class Drain:
    """Knows the answers that are being generated, and whether new ones are accepted.

    Attributes:
        begun: no new requests are accepted.
        active: answers that are not finished.
    """

    def __init__(self) -> None:
        self.begun = False
        self.active: set[Answer] = set()

    def check(self) -> None:
        """Refuse a new request once the server is being stopped.

        Raises:
            APIError: it is.
        """
        if self.begun:
            raise APIError(503, "the server is being stopped; ask another one, or later")

    async def run(self, seconds: float) -> None:
        """Accept no more requests, and return when all have ended; after so many seconds they are cancelled."""
        self.begun = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.active:
                    await asyncio.sleep(POLL_SECONDS)
        for answer in self.active:
            answer.cancel()
