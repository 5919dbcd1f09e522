"""`/v1/completions`: from a request to its answer, at once or as a stream."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from typing import Annotated, Any

from fastapi import Depends, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from gpt.data.tokenizers import Tokenizer
from gpt.generation import SampledToken
from gpt.model import GPT
from gpt.serving.http.answer import Answer, Choice
from gpt.serving.http.delivery import Delivery
from gpt.serving.http.drain import Drain
from gpt.serving.http.errors import APIError
from gpt.serving.http.jobs import Job, read_jobs
from gpt.serving.http.limits import Limits
from gpt.serving.http.logprobs import LogprobsStream, prompt_logprobs
from gpt.serving.http.metrics import Metrics
from gpt.serving.http.models import Models
from gpt.serving.http.protocol import CompletionRequest
from gpt.serving.request import EngineClosedError, QueueFullError

CHUNK_SECONDS = 0.03
"""Least time between two chunks of a stream: a reader sees no difference, and fewer take less from the computation."""
CLIENT_GONE = 499
"""The status that is counted where a client went away; nobody receives it."""


async def until_answered() -> AsyncIterator[AsyncExitStack]:
    """Yield what is cleaned up when the answer was sent, or when it no longer can be."""
    async with AsyncExitStack() as stack:
        yield stack


class Completions:
    """Answers requests for completions; made on the event loop.

    Args:
        models: that can be asked for.
        limits: of a request.
        drain: knows whether requests are accepted.
        metrics: count them.
        heavy: computes what the engine does not, one thing after another, since it takes the engine's cores.
    """

    def __init__(self, models: Models, limits: Limits, drain: Drain, metrics: Metrics, heavy: Executor) -> None:
        self._models, self._limits, self._drain, self._metrics = models, limits, drain, metrics
        self._delivery = Delivery(asyncio.get_running_loop())
        self._heavy = heavy

    async def create(
        self, request: Request, body: CompletionRequest, cleanup: Annotated[AsyncExitStack, Depends(until_answered)]
    ) -> Response:
        """Continue one prompt or several."""
        self._drain.check()
        served = await cleanup.enter_async_context(self._models.use(body.model))
        loaded = served.loaded
        jobs = read_jobs(body, self._limits, loaded.model, loaded.tokenizer, loaded.config.sample)
        answer = Answer(served.engine, self._delivery, sum(len(job.ids) for job in jobs))
        cleanup.callback(self._end, answer)
        self._drain.active.add(answer)
        for job in jobs:
            scored = await self._score(loaded.model, loaded.tokenizer, job, body)
            self._start(answer, job, body, loaded.tokenizer, scored)
        head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": body.model or self._models.first,
        }
        if not body.stream:
            return await _whole(request, head, answer)
        include_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # no proxy is to collect the events
        return StreamingResponse(_events(head, answer, include_usage), headers=headers, media_type="text/event-stream")

    async def _score(self, model: GPT, tokenizer: Tokenizer, job: Job, body: CompletionRequest) -> list[SampledToken]:
        """Return the tokens of a prompt with their log-probabilities, where these are to be shown."""
        if not body.echo or body.logprobs is None or not job.ids:
            return []
        cropped = [int(index) for index in tokenizer.encode(job.prompt)[: -len(job.ids)]]
        loop = asyncio.get_running_loop()
        scored = await loop.run_in_executor(self._heavy, prompt_logprobs, model, job.ids, body.logprobs)
        return [*map(SampledToken, cropped), *scored]

    def _start(
        self, answer: Answer, job: Job, body: CompletionRequest, tokenizer: Tokenizer, scored: list[SampledToken]
    ) -> None:
        """Ask the engine for the completions of a prompt.

        Raises:
            APIError: it accepts no more.
        """
        for params in job.params:
            logprobs = None if params.logprobs is None else LogprobsStream(tokenizer)
            choice = Choice(len(answer.choices), params.seed, logprobs)
            if body.echo:
                choice.begin(job.prompt, scored)
            try:
                answer.start(choice, job.prompt, params)
            except QueueFullError as error:
                raise APIError(429, f"the server is busy: {error}", code="queue_full") from None
            except EngineClosedError as error:
                raise APIError(503, str(error)) from None

    def _end(self, answer: Answer) -> None:
        """Free what an answer holds, whether it was sent or not."""
        failed = any(choice.finish in ("error", "cancelled") for choice in answer.choices)
        self._metrics.count(answer, CLIENT_GONE if not answer.finished else 500 if failed else 200)
        answer.cancel()
        self._drain.active.discard(answer)


async def _whole(request: Request, head: dict[str, Any], answer: Answer) -> Response:
    """Return the whole answer, or nothing to a client that went away."""
    gone, done = asyncio.create_task(_wait_until_gone(request)), asyncio.create_task(answer.wait())
    try:
        await asyncio.wait((gone, done), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        done.cancel()
    if not answer.finished:
        return Response(status_code=CLIENT_GONE)
    answer.check()
    return JSONResponse({**head, "choices": [choice.take() for choice in answer.choices], "usage": answer.usage})


async def _wait_until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _events(head: dict[str, Any], answer: Answer, include_usage: bool) -> AsyncIterator[str]:
    """Yield the answer as server-sent events; an error, too, is one, since the status was sent long ago."""
    clock = asyncio.get_running_loop().time
    usage = {"usage": None} if include_usage else {}
    while True:
        answer.changed.clear()
        finished, next_time = answer.finished, clock() + CHUNK_SECONDS
        for choice in answer.choices:
            if (part := choice.take()) is not None:
                yield _event({**head, "choices": [part], **usage})
        try:
            answer.check()
        except APIError as error:
            yield _event(error.body)
            break
        if finished:
            if include_usage:
                yield _event({**head, "choices": [], "usage": answer.usage})
            break
        await answer.changed.wait()
        await asyncio.sleep(next_time - clock())
    yield "data: [DONE]\n\n"


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, separators=(',', ':'))}\n\n"
