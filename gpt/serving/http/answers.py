"""All answers that are being generated: from their beginning until what they hold is freed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from gpt.serving.engine import ServingEngine
from gpt.serving.http.answer import Answer
from gpt.serving.http.delivery import Delivery
from gpt.serving.http.drain import Drain
from gpt.serving.http.metrics import Metrics

CLIENT_GONE = 499
"""The status that is counted where a client went away; nobody receives it."""


async def until_answered() -> AsyncIterator[AsyncExitStack]:
    """Yield what is cleaned up when the answer was sent, or when it no longer can be."""
    async with AsyncExitStack() as stack:
        yield stack


class Answers:
    """Opens answers; made on the event loop.

    Args:
        drain: knows whether requests are accepted.
        metrics: count them.
    """

    def __init__(self, drain: Drain, metrics: Metrics) -> None:
        self._drain, self._metrics = drain, metrics
        self._delivery = Delivery(asyncio.get_running_loop())

    def check(self) -> None:
        """Refuse a new request once the server is being stopped; see `Drain.check`."""
        self._drain.check()

    def open(self, engine: ServingEngine, prompt_tokens: int, cleanup: AsyncExitStack) -> Answer:
        """Return an answer without choices.

        Args:
            engine: that generates.
            prompt_tokens: of the prompts, each counted once.
            cleanup: frees what the answer holds.
        """
        answer = Answer(engine, self._delivery, prompt_tokens)
        cleanup.callback(self._end, answer)
        self._drain.active.add(answer)
        return answer

    def _end(self, answer: Answer) -> None:
        """Free what an answer holds, whether it was sent or not."""
        failed = any(choice.finish in ("error", "cancelled") for choice in answer.choices)
        self._metrics.count(answer, CLIENT_GONE if not answer.finished else 500 if failed else 200)
        answer.cancel()
        self._drain.active.discard(answer)
