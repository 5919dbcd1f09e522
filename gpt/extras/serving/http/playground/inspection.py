"""Endpoints that look into a model while it reads a text: attention, logit lens, surprisal, all of it as one picture,
and how it goes on.

Their answers have the shape of the pages of `gpt.show`, and are shown by the same code.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Annotated, Any

import torch
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from gpt.checkpoint import Loaded
from gpt.data.tokenizers import convert_newlines
from gpt.extras.inspection.rendering.pages import packed_bytes, page_data, picture_bytes
from gpt.extras.inspection.tracing.activation_cache import Edits
from gpt.extras.inspection.views.attention import attention_view, without_heads
from gpt.extras.inspection.views.continuation import continuation_view
from gpt.extras.inspection.views.lens import lens_view
from gpt.extras.inspection.views.picture import picture_view
from gpt.extras.inspection.views.surprisal import surprisal
from gpt.extras.inspection.views.tokens import View, labels_of, require_finite
from gpt.extras.serving.http.limits import Limits
from gpt.extras.serving.http.protocol import APIError, naming
from gpt.extras.serving.http.responses import CLIENT_GONE, Services
from gpt.system.errors import InputError

ALTERNATIVES = 10
"""Most likely tokens that are shown."""
ALTERNATIVE_BYTES = 24
"""About what one of them takes."""
MEMORY_PER_BYTE = 16
"""Bytes of activations that are allowed per byte of an answer."""
Head = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=2, max_length=2)]


class ReadingRequest(BaseModel):
    """A text to look at."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str = Field(min_length=1, description="What the model reads.")
    model: str | None = Field(None, description="One of /v1/models; left out: the server's first.")
    ablate: list[Head] = Field([], description="Heads whose output is set to zero, each [layer, head].")
    count: int = Field(64, ge=1, le=128, description="Tokens to write, where the text is continued.")
    last: int | None = Field(
        None,
        ge=1,
        description="Read no more than this many tokens, those at the end of the text, and answer with `read`, "
        "their number, where there are others; left out: a text longer than the window is refused.",
    )


VIEWS = ("attention", "lens", "surprisal", "picture", "continue")


def _view(name: str, loaded: Loaded, idx: Tensor, edits: Edits, count: int, memory: int) -> View:
    """Return a view of a model and the ids (T,) of a text; `memory`: most bytes of activations."""
    model, tokenizer = loaded.model, loaded.tokenizer
    if name == "attention":
        return attention_view(model, tokenizer, idx, edits, memory)
    if name == "lens":
        return lens_view(model, tokenizer, idx, ALTERNATIVES, edits, memory)
    if name == "picture":
        return picture_view(model, tokenizer, idx, edits, memory)
    if name == "continue":
        return continuation_view(model, tokenizer, idx, count, edits)
    if len(idx) < 2:
        raise InputError("it has 1 token; this view needs at least 2")
    found = surprisal(model, idx, edits=edits)
    require_finite(found.bits)
    bits = [None, *found.bits.tolist()]
    return {"labels": labels_of(tokenizer, idx.tolist()), "bits": bits, "mean_bits": found.mean_bits}


def add_inspection(app: FastAPI, services: Services) -> None:
    """Add an endpoint for each view; one view is computed at a time, beside the event loop and the engine."""
    turn, limits = asyncio.Lock(), services.limits
    waiting = 0

    def endpoint(name: str) -> Callable[..., Any]:
        def compute(body: ReadingRequest, loaded: Loaded) -> bytes:
            ids, is_whole = _encode(name, body, loaded, limits)
            idx = torch.tensor(ids, dtype=torch.long, device=loaded.model.wte.weight.device)
            edits = _edits(body, loaded)
            needed = _view_bytes(name, loaded, len(idx))
            if needed > limits.view_bytes:
                raise APIError(
                    400,
                    f"text: what there is to show takes {needed:,} bytes, more than this server's limit of "
                    f"{limits.view_bytes:,}; shorten the text",
                    "text",
                )
            try:
                view = _view(name, loaded, idx, edits, body.count, MEMORY_PER_BYTE * limits.view_bytes)
                content = page_data(name, view) | ({} if is_whole else {"read": len(ids)})
            except InputError as error:
                raise APIError(400, f"text: {error}", "text") from None
            return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()

        async def answer(request: Request, body: ReadingRequest) -> Response:
            """Look into a model while it reads a text."""
            nonlocal waiting
            if waiting >= limits.views:
                message = f"{waiting} texts wait to be looked into; try again in a moment"
                raise APIError(429, message, code="queue_full")
            waiting += 1
            try:
                async with services.models.use(body.model) as served, turn:
                    if await request.is_disconnected():
                        return Response(status_code=CLIENT_GONE)
                    loop = asyncio.get_running_loop()
                    content = await loop.run_in_executor(services.executor, compute, body, served.loaded)
                    return Response(content, media_type="application/json")
            finally:
                waiting -= 1

        return answer

    for name in VIEWS:
        app.add_api_route(f"/api/{name}", endpoint(name), methods=["POST"], response_model=None)


def _view_bytes(name: str, loaded: Loaded, tokens: int) -> int:
    """Return about how many bytes a view takes, before it is computed; 0: few."""
    config = loaded.model.config
    if name == "attention":
        return packed_bytes(config.n_layer, config.n_head, tokens)
    if name == "picture":
        return picture_bytes(config, tokens)
    return (config.n_layer + 1) * tokens * ALTERNATIVES * ALTERNATIVE_BYTES if name == "lens" else 0


def _encode(name: str, body: ReadingRequest, loaded: Loaded, limits: Limits) -> tuple[list[int], bool]:
    """Return the ids of a text, and whether they are all; one that is continued may be longer than the window."""
    text, tokenizer, most = body.text, loaded.tokenizer, limits.view_tokens
    if name != "continue":
        most = min(loaded.model.config.block_size, most)
    longest = max(len(tokenizer.token_bytes(index)) for index in range(tokenizer.vocab_size))
    room = most * longest  # a character is at least one byte
    if len(text) > room and body.last is None:  # nothing of a megabyte is encoded
        raise APIError(400, f"text: it has {len(text)} characters, more than {most} tokens can have", "text")
    with naming("text"):
        ids = tokenizer.encode(convert_newlines(text[-room:])).tolist()
    read = ids if body.last is None else ids[-min(body.last, most) :]
    if len(read) > most:
        raise APIError(400, f"text: it has {len(read)} tokens, more than the {most} allowed", "text")
    return read, len(read) == len(ids) and len(text) <= room


def _edits(body: ReadingRequest, loaded: Loaded) -> Edits:
    """Return the edits that ablate the heads of a request, each once."""
    layers, heads = loaded.model.config.n_layer, loaded.model.config.n_head
    for layer, head in body.ablate:
        if layer >= layers or head >= heads:
            raise APIError(
                400, f"ablate: there is no head {head} of layer {layer}; there are {layers} layers of {heads}", "ablate"
            )
    return without_heads(list(dict.fromkeys((layer, head) for layer, head in body.ablate)))
