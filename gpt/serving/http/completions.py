"""`/v1/completions`: answer requests for completions, at once or as a stream."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from typing import Annotated, Any

from fastapi import Depends, Request, Response
from fastapi.responses import JSONResponse

from gpt.data.tokenizers import Tokenizer
from gpt.generation import SampledToken
from gpt.model import GPT
from gpt.serving.http.answer import Answer, Choice
from gpt.serving.http.answers import CLIENT_GONE, Answers, until_answered
from gpt.serving.http.events import parts, stream
from gpt.serving.http.jobs import Job, read_jobs
from gpt.serving.http.limits import Limits
from gpt.serving.http.logprobs import LogprobsStream, prompt_logprobs
from gpt.serving.http.models import Models
from gpt.serving.http.protocol import CompletionRequest


class Completions:
    """Answers requests for completions; must be constructed on the event loop.

    Args:
        models: the models it serves.
        limits: limits of a request.
        answers: opens new answers.
        heavy: runs other computations one at a time, since they compete with the engine for cores.
    """

    def __init__(self, models: Models, limits: Limits, answers: Answers, heavy: Executor) -> None:
        self._models, self._limits, self._answers, self._heavy = models, limits, answers, heavy

    async def create(
        self, request: Request, body: CompletionRequest, cleanup: Annotated[AsyncExitStack, Depends(until_answered)]
    ) -> Response:
        """Continue one prompt or several."""
        self._answers.check()
        served = await cleanup.enter_async_context(self._models.use(body.model))
        loaded = served.loaded
        jobs = read_jobs(body, self._limits, loaded.model, loaded.tokenizer, loaded.config.sample)
        answer = self._answers.open(served.engine, jobs, cleanup)
        scored = []
        for job in jobs:
            if await request.is_disconnected():
                return Response(status_code=CLIENT_GONE)
            scored.append(await self._score(loaded.model, job, body))
        for job, tokens in zip(jobs, scored, strict=True):  # only now do they hold blocks
            self._start(answer, job, body, loaded.tokenizer, tokens)
        head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self._models.first if body.model is None else body.model,
        }
        if not body.stream:
            return await _whole(request, head, answer)
        include_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        return stream(_bodies(head, answer, include_usage))

    async def _score(self, model: GPT, job: Job, body: CompletionRequest) -> list[SampledToken]:
        """Return the tokens of a prompt with their log-probabilities, if these are to be shown."""
        if not body.echo or body.logprobs is None or not job.ids:
            return []
        loop = asyncio.get_running_loop()
        scored = await loop.run_in_executor(self._heavy, prompt_logprobs, model, job.ids, job.params[0])
        return [*map(SampledToken, job.cropped), *scored]

    def _start(
        self, answer: Answer, job: Job, body: CompletionRequest, tokenizer: Tokenizer, scored: list[SampledToken]
    ) -> None:
        """Request the completions of a prompt from the engine.

        Raises:
            APIError: it accepts no more.
        """
        for params in job.params:
            logprobs = None if params.logprobs is None else LogprobsStream(tokenizer, () if body.echo else job.ids)
            choice = Choice(len(answer.choices), params.seed, logprobs)
            if body.echo:
                choice.begin(job.prompt, scored)
            answer.start(choice, job.ids, params)


async def _whole(request: Request, head: dict[str, Any], answer: Answer) -> Response:
    """Return the whole answer, or an empty one if the client disconnected."""
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


async def _bodies(head: dict[str, Any], answer: Answer, include_usage: bool) -> AsyncIterator[dict[str, Any]]:
    """Yield the chunks of an answer."""
    usage = {"usage": None} if include_usage else {}
    async for part in parts(answer):
        yield {**head, "choices": [part], **usage}
    if include_usage:
        yield {**head, "choices": [], "usage": answer.usage}
