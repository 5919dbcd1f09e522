"""`/v1/completions` and `/v1/chat/completions`: answers, at once or as a stream of server-sent
events.
"""

import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Annotated, Any, NamedTuple

from fastapi import Depends, FastAPI, Request
from fastapi.responses import Response as HTTPResponse
from fastapi.responses import StreamingResponse

from gpt.config import Config
from gpt.data.pairs import Message
from gpt.data.tokenizers import CharTokenizer, Tokenizer
from gpt.extras.serving.http.prompts import (
    DescribedToken,
    LogprobsStream,
    Prompt,
    length_of,
    read_prompts,
)
from gpt.extras.serving.http.protocol import (
    APIError,
    ChatRequest,
    CompletionRequest,
    JSONText,
    StreamOptions,
    log_failure,
)
from gpt.extras.serving.http.protocol import Message as ChatMessage
from gpt.extras.serving.http.responses import (
    CLIENT_GONE,
    Choice,
    Part,
    Response,
    Services,
    until_answered,
)
from gpt.generation.conversation import encode_conversation
from gpt.generation.text import TextStream
from gpt.generation.tokens import SampledToken
from gpt.system.errors import GPTError

EVENT_STREAM = "text/event-stream"
UNBUFFERED_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Headers that keep proxies from buffering the events; the second one is nginx's."""


Cleanup = Annotated[AsyncExitStack, Depends(until_answered)]


def _completion_choice(part: Part, is_first: bool = True) -> dict[str, Any]:
    """Return a choice of a completion, or a part of one: both have the same shape."""
    logprobs = None if part.logprobs is None else _completion_logprobs(part.logprobs)
    return {
        "index": part.index,
        "text": part.text,
        "seed": part.seed,
        "logprobs": logprobs,
        "finish_reason": part.finish_reason,
    }


def _completion_logprobs(tokens: list[DescribedToken]) -> dict[str, list[Any]]:
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


def _chat_choice(part: Part) -> dict[str, Any]:
    """Return a choice of a chat."""
    return {**_without_text(part), "message": {"role": "assistant", "content": part.text}}


def _chat_delta(part: Part, is_first: bool) -> dict[str, Any]:
    """Return a part of a choice of a chat.

    Only the first part has a role: clients join the roles of all parts, as they join the texts.
    """
    role = {"role": "assistant"} if is_first else {}
    return {**_without_text(part), "delta": {**role, "content": part.text}}


def _without_text(part: Part) -> dict[str, Any]:
    """Return what a choice of a chat has beside its message or delta."""
    logprobs = None
    if part.logprobs is not None:
        logprobs = {"content": [_chat_logprobs(token) for token in part.logprobs]}
    return {
        "index": part.index,
        "seed": part.seed,
        "finish_reason": part.finish_reason,
        "logprobs": logprobs,
    }


def _chat_logprobs(token: DescribedToken) -> dict[str, Any]:
    top = [_chat_logprob(name, content, logprob) for name, content, logprob in token.top]
    return {**_chat_logprob(token.name, token.content, token.logprob), "top_logprobs": top}


def _chat_logprob(name: str, content: bytes, logprob: float | None) -> dict[str, Any]:
    return {"token": name, "bytes": list(content), "logprob": logprob}


class Protocol(NamedTuple):
    """How an answer is written.

    Attributes:
        id_prefix: the beginning of its id.
        object: its name in the field `object`.
        chunk_object: the name of a chunk of a stream.
        choice: returns a whole choice.
        chunk_choice: returns a part of a choice, and is told whether it is the first part.
    """

    id_prefix: str
    object: str
    chunk_object: str
    choice: Callable[[Part], dict[str, Any]]
    chunk_choice: Callable[[Part, bool], dict[str, Any]]


COMPLETIONS = Protocol(
    "cmpl", "text_completion", "text_completion", _completion_choice, _completion_choice
)
CHAT = Protocol("chatcmpl", "chat.completion", "chat.completion.chunk", _chat_choice, _chat_delta)


def add_completions(app: FastAPI, services: Services) -> None:
    """Add the endpoints of both protocols."""

    async def create(request: Request, body: CompletionRequest, cleanup: Cleanup) -> HTTPResponse:
        """Continue one prompt or several."""
        return await answer(services, request, body, cleanup, COMPLETIONS)

    async def chat(request: Request, body: ChatRequest, cleanup: Cleanup) -> HTTPResponse:
        """Answer the last message of a chat; characters outside the vocabulary are dropped."""
        completion = body.to_completion()
        return await answer(services, request, completion, cleanup, CHAT, body.messages)

    app.add_api_route("/v1/completions", create, methods=["POST"], response_model=None)
    app.add_api_route("/v1/chat/completions", chat, methods=["POST"], response_model=None)


def _encode_chat(
    messages: Sequence[ChatMessage], tokenizer: Tokenizer, config: Config
) -> list[int]:
    """Return the ids of a chat as a model of questions and answers reads it; raise APIError."""
    params = config.sample.params()
    read = []
    for message in messages:
        role = "system" if message.role == "developer" else message.role
        read.append(Message(role, message.text))
    try:
        return encode_conversation(tokenizer, read, params, config.model.block_size)
    except GPTError as error:
        raise APIError(400, f"messages: {error}", "messages") from None


async def answer(
    services: Services,
    request: Request,
    body: CompletionRequest,
    cleanup: AsyncExitStack,
    protocol: Protocol,
    messages: Sequence[ChatMessage] = (),
) -> HTTPResponse:
    """Answer a request by one of the protocols; a chat drops characters outside the vocabulary.

    A model that was trained on questions and answers reads `messages` as it has read those.
    What `cleanup` is given, the model and the response, is held until the answer was sent.
    """
    worker = services.worker
    served = await cleanup.enter_async_context(services.models.use(body.model))
    model = served.loaded.model
    tokenizer = served.loaded.tokenizer
    if protocol is CHAT and isinstance(tokenizer, CharTokenizer):
        tokenizer = CharTokenizer(tokenizer.itos, "drop")
    if messages and served.loaded.config.data.items == "pairs":
        ids = _encode_chat(messages, tokenizer, served.loaded.config)
        body = body.model_copy(update={"prompt": ids})
    reading = (body, services.limits, model, tokenizer, served.loaded.config.sample)
    prompts = await worker.run(length_of(body.prompt), read_prompts, *reading)
    prompt_tokens = sum(len(prompt.ids) for prompt in prompts)
    values = sum(prompt.values for prompt in prompts)  # that the answer may hold in memory
    response = cleanup.enter_context(services.respond(served.engine, prompt_tokens, values))

    # All prompts are scored before the first one starts: a started sequence holds blocks of keys
    # and values.
    scores: list[list[SampledToken]] = []
    for prompt in prompts:
        is_scored = prompt.is_shown and body.logprobs is not None and len(prompt.ids) > 0
        if is_scored and await request.is_disconnected():
            return HTTPResponse(status_code=CLIENT_GONE)
        scores.append(await prompt.score(model, services.executor) if is_scored else [])
    for prompt, scored in zip(prompts, scores, strict=True):
        first = len(response.choices)
        choices = await worker.run(prompt.values, _begin, prompt, scored, tokenizer, first)
        for choice, params in zip(choices, prompt.params, strict=True):
            response.start(choice, prompt.ids, params)

    head = _head(body, protocol, services.models.first)
    if body.stream:
        return stream(_events(head, response, protocol, body.stream_options or StreamOptions()))
    while not response.finished:
        if await request.is_disconnected():
            return HTTPResponse(status_code=CLIENT_GONE)
        await response.wait()
    response.check()
    return await worker.run(values, _whole, head, response, protocol)


def _head(body: CompletionRequest, protocol: Protocol, default_model: str) -> dict[str, Any]:
    """Return the fields that an answer begins with, and each chunk of a stream."""
    return {
        "id": f"{protocol.id_prefix}-{secrets.token_hex(12)}",
        "object": protocol.chunk_object if body.stream else protocol.object,
        "created": int(time.time()),
        "model": default_model if body.model is None else body.model,
    }


def _begin(
    prompt: Prompt, scored: list[SampledToken], tokenizer: Tokenizer, first: int
) -> list[Choice]:
    """Return the choices of a prompt.

    Args:
        scored: the prompt's tokens in the window with log-probabilities, if these are shown; else
            empty.
        first: the index of the first choice in the answer.
    """
    # the text before the first token that log-probabilities describe
    before = prompt.ids
    offset = 0
    if prompt.is_shown:
        before = prompt.cropped_text_ids
        offset = len(TextStream(tokenizer).begin(before)) if scored else 0
    choices = []
    for index, params in enumerate(prompt.params, first):
        logprobs = None
        if params.logprobs is not None:
            logprobs = LogprobsStream(tokenizer, before, offset)
        choice = Choice(index, params.seed, logprobs)
        if prompt.is_shown:
            choice.begin(prompt.text, scored)
        choices.append(choice)
    return choices


def _whole(head: dict[str, Any], response: Response, protocol: Protocol) -> JSONText:
    """Return the answer of a response that has finished."""
    parts = [choice.take() for choice in response.choices]
    choices = [protocol.choice(part) for part in parts if part is not None]
    return JSONText({**head, "choices": choices, "usage": response.usage})


async def _events(
    head: dict[str, Any], response: Response, protocol: Protocol, options: StreamOptions
) -> AsyncIterator[str]:
    """Yield an event for each part of the choices, and at the end the token counts if they are
    asked for.
    """
    begun: set[int] = set()  # indices of choices of which a part was sent
    async for part in response.parts():
        is_first = part.index not in begun
        begun.add(part.index)
        chunk = dict(head)
        if options.continuous_usage_stats:
            chunk["usage"] = response.usage
        elif options.include_usage:
            chunk["usage"] = None  # the protocol has null in all chunks before the last
        yield await response.work(part, _chunk_event, chunk, part, protocol, is_first)
    if options.include_usage:
        yield event({**head, "choices": [], "usage": response.usage})


def _chunk_event(chunk: dict[str, Any], part: Part, protocol: Protocol, is_first: bool) -> str:
    return event({**chunk, "choices": [protocol.chunk_choice(part, is_first)]})


def stream(events: AsyncIterator[str]) -> StreamingResponse:
    """Return an HTTP response that sends events as they come, and marks the end."""
    return StreamingResponse(
        _until_done(events), headers=UNBUFFERED_HEADERS, media_type=EVENT_STREAM
    )


async def _until_done(events: AsyncIterator[str]) -> AsyncIterator[str]:
    """Yield the events. An error is sent as an event too, since the status was sent long ago."""
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
