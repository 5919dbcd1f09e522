"""`/v1/completions`: answer requests for completions, at once or as a stream of server-sent events."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.responses import Response as HTTPResponse

from gpt.data.tokenizers import Tokenizer
from gpt.generation import SampledToken
from gpt.serving.http.prompts import LogprobsStream, Prompt, read_prompts
from gpt.serving.http.protocol import APIError, Completion, CompletionRequest, Responses
from gpt.serving.http.responses import CLIENT_GONE, Choice, Response, Services, until_answered

EVENTS = "text/event-stream"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Keep proxies from buffering the events."""


def add_completions(app: FastAPI, services: Services) -> None:
    async def create(
        request: Request, body: CompletionRequest, cleanup: Annotated[AsyncExitStack, Depends(until_answered)]
    ) -> HTTPResponse:
        """Continue one prompt or several."""
        cleanup.enter_context(services.responses.admit())
        served = await cleanup.enter_async_context(services.models.use(body.model))
        model, tokenizer = served.loaded.model, served.loaded.tokenizer
        prompts = read_prompts(body, services.limits, model, tokenizer, served.loaded.config.sample)
        tokens, values = sum(len(prompt.ids) for prompt in prompts), sum(prompt.values for prompt in prompts)
        response = services.responses.open(served.engine, tokens, values, cleanup)
        scored = []
        for prompt in prompts:
            is_shown = body.echo and body.logprobs is not None and prompt.ids
            if is_shown and await request.is_disconnected():
                return HTTPResponse(status_code=CLIENT_GONE)
            scored.append(await prompt.score(model, services.executor) if is_shown else [])
        # only now do they hold blocks
        for prompt, given in zip(prompts, scored, strict=True):
            _start(response, prompt, body, tokenizer, given)
        head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": services.models.first if body.model is None else body.model,
        }
        if not body.stream:
            return await _whole(request, head, response)
        include_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        return stream(_bodies(head, response, include_usage))

    described: Responses = {200: {"model": Completion, "content": {EVENTS: {}}, "description": "Completion"}}
    app.add_api_route("/v1/completions", create, methods=["POST"], response_model=None, responses=described)


def _start(
    response: Response, prompt: Prompt, body: CompletionRequest, tokenizer: Tokenizer, scored: list[SampledToken]
) -> None:
    """Request the completions of a prompt from the engine, see `Response.start`."""
    for params in prompt.params:
        logprobs = None if params.logprobs is None else LogprobsStream(tokenizer, () if body.echo else prompt.ids)
        choice = Choice(len(response.choices), params.seed, logprobs)
        if body.echo:
            choice.begin(prompt.text, scored)
        response.start(choice, prompt.ids, params)


async def _whole(request: Request, head: dict[str, Any], response: Response) -> HTTPResponse:
    """Return the whole response, or an empty one if the client disconnected."""
    gone, done = asyncio.create_task(_wait_until_gone(request)), asyncio.create_task(response.ended.wait())
    try:
        await asyncio.wait((gone, done), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        done.cancel()
    if not response.finished:
        return HTTPResponse(status_code=CLIENT_GONE)
    response.check()
    return JSONResponse({**head, "choices": [choice.take() for choice in response.choices], "usage": response.usage})


async def _wait_until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _bodies(head: dict[str, Any], response: Response, include_usage: bool) -> AsyncIterator[dict[str, Any]]:
    usage = {"usage": None} if include_usage else {}
    async for part in parts(response):
        yield {**head, "choices": [part], **usage}
    if include_usage:
        yield {**head, "choices": [], "usage": response.usage}


async def parts(response: Response) -> AsyncIterator[dict[str, Any]]:
    """Yield the new parts of a response's choices, see `Choice.take`; raise APIError where one ended early."""
    while True:
        response.changed.clear()
        finished = response.finished
        for choice in response.choices:
            if (part := choice.take()) is not None:
                yield part
        response.check()
        if finished:
            return
        await response.changed.wait()


def stream(bodies: AsyncIterator[dict[str, Any]]) -> StreamingResponse:
    """Return an HTTP response that sends bodies as they come, and marks the end."""
    return StreamingResponse(_events(bodies), headers=HEADERS, media_type=EVENTS)


async def _events(bodies: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    """Yield the events; an error becomes one too, since the status was sent long ago."""
    try:
        async for body in bodies:
            yield _event(body)
    except APIError as error:
        yield _event(error.body)
    yield "data: [DONE]\n\n"


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, separators=(',', ':'))}\n\n"
