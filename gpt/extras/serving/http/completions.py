"""`/v1/completions` and `/v1/chat/completions`: answers, at once or as a stream of server-sent events."""

import json
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Annotated, Any, NamedTuple

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.responses import Response as HTTPResponse

from gpt.data.tokenizers import CharTokenizer
from gpt.extras.serving.http.prompts import LogprobsStream, read_prompts
from gpt.extras.serving.http.protocol import APIError, ChatRequest, CompletionRequest
from gpt.extras.serving.http.responses import CLIENT_GONE, Choice, Response, Services, until_answered

EVENTS = "text/event-stream"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Keep proxies from buffering the events."""


Cleanup = Annotated[AsyncExitStack, Depends(until_answered)]


def _text(part: dict[str, Any], streamed: bool) -> dict[str, Any]:
    return part


def _message(part: dict[str, Any], streamed: bool) -> dict[str, Any]:
    kept = {name: part[name] for name in ("index", "seed", "logprobs", "finish_reason")}
    return {**kept, "delta" if streamed else "message": {"role": "assistant", "content": part["text"]}}


class Protocol(NamedTuple):
    """How an answer is written: the beginning of its id, its name whole and in parts, and a choice of it."""

    id: str
    whole: str
    chunk: str
    choice: Callable[[dict[str, Any], bool], dict[str, Any]]


COMPLETIONS = Protocol("cmpl", "text_completion", "text_completion", _text)
CHAT = Protocol("chatcmpl", "chat.completion", "chat.completion.chunk", _message)


def add_completions(app: FastAPI, services: Services) -> None:
    async def create(request: Request, body: CompletionRequest, cleanup: Cleanup) -> HTTPResponse:
        """Continue one prompt or several."""
        return await answer(services, request, body, cleanup, COMPLETIONS)

    async def chat(request: Request, body: ChatRequest, cleanup: Cleanup) -> HTTPResponse:
        """Continue the last message of a chat; characters outside the vocabulary are dropped."""
        return await answer(services, request, body.to_completion(), cleanup, CHAT)

    app.add_api_route("/v1/completions", create, methods=["POST"], response_model=None)
    app.add_api_route("/v1/chat/completions", chat, methods=["POST"], response_model=None)


async def answer(
    services: Services, request: Request, body: CompletionRequest, cleanup: AsyncExitStack, protocol: Protocol
) -> HTTPResponse:
    """Answer a request by one of the protocols; a chat drops characters outside the vocabulary."""
    served = await cleanup.enter_async_context(services.models.use(body.model))
    model, tokenizer = served.loaded.model, served.loaded.tokenizer
    if protocol is CHAT and isinstance(tokenizer, CharTokenizer):
        tokenizer = CharTokenizer(tokenizer.itos, "drop")
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
        "id": f"{protocol.id}-{secrets.token_hex(12)}",
        "object": protocol.chunk if body.stream else protocol.whole,
        "created": int(time.time()),
        "model": services.models.first if body.model is None else body.model,
    }
    if body.stream:
        include_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        return stream(_bodies(head, response, protocol, include_usage))
    while not response.finished:
        if await request.is_disconnected():
            return HTTPResponse(status_code=CLIENT_GONE)
        await response.wait()
    response.check()
    taken = (choice.take() for choice in response.choices)
    choices = [protocol.choice(part, False) for part in taken if part is not None]
    return JSONResponse({**head, "choices": choices, "usage": response.usage})


async def _bodies(
    head: dict[str, Any], response: Response, protocol: Protocol, include_usage: bool
) -> AsyncIterator[dict[str, Any]]:
    usage = {"usage": None} if include_usage else {}
    async for part in response.parts():
        yield {**head, "choices": [protocol.choice(part, True)], **usage}
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
