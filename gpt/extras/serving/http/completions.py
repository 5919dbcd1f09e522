"""`/v1/completions`: answer requests for completions, at once or as a stream of server-sent events."""

import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.responses import Response as HTTPResponse

from gpt.extras.serving.http.prompts import LogprobsStream, read_prompts
from gpt.extras.serving.http.protocol import APIError, CompletionRequest
from gpt.extras.serving.http.responses import CLIENT_GONE, Choice, Response, Services, until_answered

EVENTS = "text/event-stream"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Keep proxies from buffering the events."""


def add_completions(app: FastAPI, services: Services) -> None:
    async def create(
        request: Request, body: CompletionRequest, cleanup: Annotated[AsyncExitStack, Depends(until_answered)]
    ) -> HTTPResponse:
        """Continue one prompt or several."""
        served = await cleanup.enter_async_context(services.models.use(body.model))
        model, tokenizer = served.loaded.model, served.loaded.tokenizer
        prompts = read_prompts(body, services.limits, model, tokenizer, served.loaded.config.sample)
        tokens, values = sum(len(prompt.ids) for prompt in prompts), sum(prompt.values for prompt in prompts)
        response = cleanup.enter_context(services.respond(served.engine, tokens, values))
        scored = []
        for prompt in prompts:
            is_shown = body.echo and body.logprobs is not None and prompt.ids
            if is_shown and await request.is_disconnected():
                return HTTPResponse(status_code=CLIENT_GONE)
            scored.append(await prompt.score(model, services.executor) if is_shown else [])
        # only now do they hold blocks
        for prompt, given in zip(prompts, scored, strict=True):
            for params in prompt.params:
                before = () if body.echo else prompt.ids
                logprobs = None if params.logprobs is None else LogprobsStream(tokenizer, before)
                choice = Choice(len(response.choices), params.seed, logprobs)
                if body.echo:
                    choice.begin(prompt.text, given)
                response.start(choice, prompt.ids, params)
        head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": services.models.first if body.model is None else body.model,
        }
        if body.stream:
            include_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
            return stream(_bodies(head, response, include_usage))
        while not response.finished:
            if await request.is_disconnected():
                return HTTPResponse(status_code=CLIENT_GONE)
            await response.wait()
        response.check()
        choices = [choice.take() for choice in response.choices]
        return JSONResponse({**head, "choices": choices, "usage": response.usage})

    app.add_api_route("/v1/completions", create, methods=["POST"], response_model=None)


async def _bodies(head: dict[str, Any], response: Response, include_usage: bool) -> AsyncIterator[dict[str, Any]]:
    usage = {"usage": None} if include_usage else {}
    async for part in response.parts():
        yield {**head, "choices": [part], **usage}
    if include_usage:
        yield {**head, "choices": [], "usage": response.usage}


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
