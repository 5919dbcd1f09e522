"""All answers in progress, from the request until their resources are freed."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack

from gpt.serving.engine import ServingEngine
from gpt.serving.http.answer import Answer
from gpt.serving.http.delivery import Delivery
from gpt.serving.http.drain import Drain
from gpt.serving.http.errors import APIError
from gpt.serving.http.jobs import Job
from gpt.serving.http.metrics import Metrics

CLIENT_GONE = 499
"""The status counted if the client disconnected; nobody receives it."""


async def until_answered() -> AsyncIterator[AsyncExitStack]:
    """Yield a stack whose callbacks run once the answer was sent, or can no longer be."""
    async with AsyncExitStack() as stack:
        yield stack


class Answers:
    """Opens answers; must be constructed on the event loop.

    Args:
        drain: knows whether requests are accepted.
        metrics: count answers.
        most_values: most tokens and log-probabilities that all hold together, see `Limits.values`.
    """

    def __init__(self, drain: Drain, metrics: Metrics, most_values: int) -> None:
        self._drain, self._metrics, self._most_values = drain, metrics, most_values
        self._delivery = Delivery(asyncio.get_running_loop())

    def check(self) -> None:
        """Refuse a new request once the server is being stopped; see `Drain.check`."""
        self._drain.check()

    def open(self, engine: ServingEngine, jobs: Sequence[Job], cleanup: AsyncExitStack) -> Answer:
        """Return an answer without choices.

        Args:
            engine: generates the completions.
            jobs: what will be requested from it.
            cleanup: frees the answer's resources.

        Raises:
            APIError: there would be too many tokens and log-probabilities in all answers.
        """
        values = sum(job.values for job in jobs)
        if values + sum(other.values for other in self._drain.active) > self._most_values:
            raise APIError(429, "the server is busy: it holds as many answers as it accepts", code="queue_full")
        answer = Answer(engine, self._delivery, sum(len(job.ids) for job in jobs), values)
        cleanup.callback(self._end, answer)
        self._drain.active.add(answer)
        return answer

    def _end(self, answer: Answer) -> None:
        """Free an answer's resources, whether it was sent or not."""
        failed = any(choice.finish in ("error", "cancelled") for choice in answer.choices)
        self._metrics.count(answer, CLIENT_GONE if not (answer.choices and answer.finished) else 500 if failed else 200)
        answer.cancel()
        self._drain.active.discard(answer)
