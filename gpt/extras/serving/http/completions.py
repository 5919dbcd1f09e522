"""`/v1/completions` and `/v1/chat/completions`: answers, at once or as a stream of server-sent events."""

import json
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Annotated, Any, NamedTuple

from fastapi import Depends, FastAPI, Request
from fastapi.responses import Response as HTTPResponse
from fastapi.responses import StreamingResponse

from gpt.data.tokenizers import CharTokenizer, Tokenizer
from gpt.extras.serving.http.prompts import DescribedToken, LogprobsStream, Prompt, length_of, read_prompts
from gpt.extras.serving.http.protocol import (
    APIError,
    ChatRequest,
    CompletionRequest,
    JSONText,
    StreamOptions,
    log_failure,
)
from gpt.extras.serving.http.responses import CLIENT_GONE, Choice, Response, Services, until_answered
from gpt.generation.text import TextStream
from gpt.generation.tokens import SampledToken

EVENTS = "text/event-stream"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Keep proxies from buffering the events."""


Cleanup = Annotated[AsyncExitStack, Depends(until_answered)]


def _text(part: dict[str, Any], is_first: bool = True) -> dict[str, Any]:
    """Return a choice of a completion, or a part of it."""
    tokens = part["logprobs"]
    return {**part, "logprobs": None if tokens is None else _text_logprobs(tokens)}


def _text_logprobs(tokens: list[DescribedToken]) -> dict[str, list[Any]]:
    return {
        "tokens": [token.name for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [_top_logprobs(token) for token in tokens],
        "text_offset": [token.offset for token in tokens],
    }


def _top_logprobs(token: DescribedToken) -> dict[str, float] | None:
    """Return the most likely tokens, and the one that was sampled if it is not among them."""
    if token.logprob is None:
        return None
    top = {name: logprob for name, _, logprob in token.top}
    return {**top, token.name: token.logprob}


def _message(part: dict[str, Any]) -> dict[str, Any]:
    """Return a choice of a chat."""
    return {**_without_text(part), "message": {"role": "assistant", "content": part["text"]}}


def _delta(part: dict[str, Any], is_first: bool) -> dict[str, Any]:
    """Return a part of a choice of a chat; clients join the roles of all parts, as they join the texts."""
    role = {"role": "assistant"} if is_first else {}
    return {**_without_text(part), "delta": {**role, "content": part["text"]}}


def _without_text(part: dict[str, Any]) -> dict[str, Any]:
    kept = {name: part[name] for name in ("index", "seed", "finish_reason")}
    tokens = part["logprobs"]
    return {**kept, "logprobs": None if tokens is None else {"content": list(map(_chat_logprobs, tokens))}}


def _chat_logprobs(token: DescribedToken) -> dict[str, Any]:
    top = [_named(*each) for each in token.top]
    return {**_named(token.name, token.content, token.logprob), "top_logprobs": top}


def _named(name: str, content: bytes, logprob: float | None) -> dict[str, Any]:
    return {"token": name, "bytes": list(content), "logprob": logprob}


class Protocol(NamedTuple):
    """How an answer is written: the beginning of its id, its name and a choice of it, whole and in parts."""

    id: str
    whole: str
    chunk: str
    choice: Callable[[dict[str, Any]], dict[str, Any]]
    part: Callable[[dict[str, Any], bool], dict[str, Any]]


COMPLETIONS = Protocol("cmpl", "text_completion", "text_completion", _text, _text)
CHAT = Protocol("chatcmpl", "chat.completion", "chat.completion.chunk", _message, _delta)


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
    defaults = served.loaded.config.sample
    reading = (body, services.limits, model, tokenizer, defaults)
    prompts = await services.worker.run(length_of(body.prompt), read_prompts, *reading)
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
        beginning = (prompt, given, bool(body.echo), tokenizer, len(response.choices))
        choices = await services.worker.run(prompt.values, _begin, *beginning)
        for choice, params in zip(choices, prompt.params, strict=True):
            response.start(choice, prompt.ids, params)
    head = {
        "id": f"{protocol.id}-{secrets.token_hex(12)}",
        "object": protocol.chunk if body.stream else protocol.whole,
        "created": int(time.time()),
        "model": services.models.first if body.model is None else body.model,
    }
    if body.stream:
        return stream(_events(head, response, protocol, body.stream_options or StreamOptions()))
    while not response.finished:
        if await request.is_disconnected():
            return HTTPResponse(status_code=CLIENT_GONE)
        await response.wait()
    response.check()
    return await services.worker.run(values, _whole, head, response, protocol)


def _begin(prompt: Prompt, given: list[SampledToken], echo: bool, tokenizer: Tokenizer, first: int) -> list[Choice]:
    """Return the choices of a prompt, of which `first` is the number of the first one.

    With `echo` they begin with the prompt, and with log-probabilities of `given`, its tokens in the window.
    """
    cropped = len(TextStream(tokenizer).begin(prompt.cropped)) if given else 0
    choices = []
    for index, params in enumerate(prompt.params, first):
        before, offset = (prompt.cropped, cropped) if echo else (prompt.ids, 0)
        logprobs = None if params.logprobs is None else LogprobsStream(tokenizer, before, offset)
        choice = Choice(index, params.seed, logprobs)
        if echo:
            choice.begin(prompt.text, given)
        choices.append(choice)
    return choices


def _whole(head: dict[str, Any], response: Response, protocol: Protocol) -> JSONText:
    taken = (choice.take() for choice in response.choices)
    choices = [protocol.choice(part) for part in taken if part is not None]
    return JSONText({**head, "choices": choices, "usage": response.usage})


async def _events(
    head: dict[str, Any], response: Response, protocol: Protocol, options: StreamOptions
) -> AsyncIterator[str]:
    begun: set[int] = set()
    async for part in response.parts():
        is_first = part["index"] not in begun
        begun.add(part["index"])
        usage = response.usage if options.continuous_usage_stats else None
        shown = {"usage": usage} if options.include_usage or usage is not None else {}
        yield await response.work(part, _part_event, {**head, **shown}, part, protocol, is_first)
    if options.include_usage:
        yield event({**head, "choices": [], "usage": response.usage})


def _part_event(head: dict[str, Any], part: dict[str, Any], protocol: Protocol, is_first: bool) -> str:
    return event({**head, "choices": [protocol.part(part, is_first)]})


def stream(events: AsyncIterator[str]) -> StreamingResponse:
    """Return an HTTP response that sends events as they come, and marks the end."""
    return StreamingResponse(_until_done(events), headers=HEADERS, media_type=EVENTS)


async def _until_done(events: AsyncIterator[str]) -> AsyncIterator[str]:
    """Yield the events; an error becomes one too, since the status was sent long ago."""
    try:
        async for each in events:
            yield each
    except APIError as error:
        log_failure("a stream", error)
        yield event(error.body)
    yield "data: [DONE]\n\n"


def event(body: dict[str, Any]) -> str:
    """Return a body as one server-sent event."""
    return f"data: {json.dumps(body, separators=(',', ':'))}\n\n"
