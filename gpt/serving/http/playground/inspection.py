"""Endpoints that look into a model while it reads a text: attention, logit lens, surprisal, and all of
it as one picture.

Their answers have the shape of the pages of `gpt.show`, and are shown by the same code.
"""

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import torch
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from gpt.checkpoint import Loaded
from gpt.data.tokenizers import convert_newlines
from gpt.errors import DataError, InputError
from gpt.inspection.rendering.pages import packed_bytes, page_data, picture_bytes
from gpt.inspection.tracing.activation_cache import Edits
from gpt.inspection.views.attention import attention_view, without_heads
from gpt.inspection.views.continuation import continuation_view
from gpt.inspection.views.lens import lens_view
from gpt.inspection.views.picture import picture_view
from gpt.inspection.views.surprisal import surprisal
from gpt.inspection.views.tokens import View, labels_of, require_finite
from gpt.serving.http.protocol import APIError
from gpt.serving.http.responses import CLIENT_GONE, Services

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

    text: str = Field(description="What the model reads.", json_schema_extra={"minLength": 1})
    model: str | None = Field(None, description="One of /v1/models; left out: the server's first.")
    ablate: list[Head] | None = Field(None, description="Heads whose output is set to zero, each [layer, head].")


class ContinueRequest(ReadingRequest):
    """A text to continue by the most likely tokens."""

    count: int = Field(64, ge=1, le=128, description="Tokens to write.")


class InspectionAPI:
    """Answers requests for views, which are computed one after another, beside the event loop and the engine."""

    def __init__(self, services: Services) -> None:
        self._services, self._limits = services, services.limits
        self._memory = MEMORY_PER_BYTE * services.limits.view_bytes
        self._turn = asyncio.Lock()
        self._count = 0

    async def attention(self, request: Request, body: ReadingRequest) -> Response:
        """Show where every head attends."""

        def view(loaded: Loaded) -> View:
            idx, edits, config = self._encode(body, loaded), _edits(body, loaded), loaded.model.config
            self._check_bytes(packed_bytes(config.n_layer, config.n_head, len(idx)))
            return page_data("attention", attention_view(loaded.model, loaded.tokenizer, idx, edits, self._memory))

        return await self._answer(request, body, view)

    async def lens(self, request: Request, body: ReadingRequest) -> Response:
        """Show what the model would predict after each block."""

        def view(loaded: Loaded) -> View:
            idx, edits = self._encode(body, loaded), _edits(body, loaded)
            self._check_bytes((loaded.model.config.n_layer + 1) * len(idx) * ALTERNATIVES * ALTERNATIVE_BYTES)
            of = (loaded.model, loaded.tokenizer, idx)
            return page_data("lens", lens_view(*of, ALTERNATIVES, edits, self._memory))

        return await self._answer(request, body, view)

    async def surprisal(self, request: Request, body: ReadingRequest) -> Response:
        """Show how unlikely each token was."""

        def view(loaded: Loaded) -> View:
            idx = self._encode(body, loaded, least=2)
            found = surprisal(loaded.model, idx, edits=_edits(body, loaded))
            require_finite(found.bits)
            labels = labels_of(loaded.tokenizer, idx.tolist())
            bits = [None, *found.bits.tolist()]
            return page_data("surprisal", {"labels": labels, "bits": bits, "mean_bits": found.mean_bits})

        return await self._answer(request, body, view)

    async def picture(self, request: Request, body: ReadingRequest) -> Response:
        """Show what each part of the model adds."""

        def view(loaded: Loaded) -> View:
            idx, edits, config = self._encode(body, loaded), _edits(body, loaded), loaded.model.config
            self._check_bytes(picture_bytes(config.n_layer, config.n_head, config.n_embd, len(idx)))
            return page_data("picture", picture_view(loaded.model, loaded.tokenizer, idx, edits, self._memory))

        return await self._answer(request, body, view)

    async def continuation(self, request: Request, body: ContinueRequest) -> Response:
        """Continue the text by the most likely tokens."""

        def view(loaded: Loaded) -> View:
            idx, edits = self._encode(body, loaded, is_cropped=True), _edits(body, loaded)
            return page_data("continuation", continuation_view(loaded.model, loaded.tokenizer, idx, body.count, edits))

        return await self._answer(request, body, view)

    def _check_bytes(self, needed: int) -> None:
        if needed > self._limits.view_bytes:
            raise InputError(
                f"what there is to show takes {needed:,} bytes, more than this server's limit of "
                f"{self._limits.view_bytes:,}; shorten the text"
            )

    async def _answer(self, request: Request, body: ReadingRequest, view: Callable[[Loaded], View]) -> Response:
        """Return a view of a request's text as JSON, unless its client disconnects while it waits."""
        with self._services.responses.admit():
            if self._count >= self._limits.views:
                message = f"{self._count} texts wait to be looked into; try again in a moment"
                raise APIError(429, message, code="queue_full")
            self._count += 1
            try:
                async with self._services.models.use(body.model) as served, self._turn:
                    if await request.is_disconnected():
                        return Response(status_code=CLIENT_GONE)
                    name = self._services.models.first if body.model is None else body.model
                    head = {"model": name, "text": body.text, "ablate": body.ablate or []}
                    write = partial(_to_json, head, view, served.loaded)
                    content = await asyncio.get_running_loop().run_in_executor(self._services.executor, write)
                    return Response(content, media_type="application/json")
            finally:
                self._count -= 1

    def _encode(self, body: ReadingRequest, loaded: Loaded, least: int = 1, is_cropped: bool = False) -> Tensor:
        """Return the ids (T,) of a text; one that is cropped may be longer than the window."""
        text, most = body.text, self._limits.view_tokens
        if not is_cropped:
            most = min(loaded.model.config.block_size, most)
        if len(text) > most:  # nothing of a megabyte is encoded; a character is at least one token
            raise APIError(400, f"text: it has {len(text)} characters, more than the {most} allowed", "text")
        try:
            ids = loaded.tokenizer.encode(convert_newlines(text)).tolist()
        except DataError as error:
            raise APIError(400, f"text: {error}", "text") from None
        if len(ids) > most:
            raise APIError(400, f"text: it has {len(ids)} tokens, more than the {most} allowed", "text")
        if len(ids) < least:
            raise APIError(400, f"text: it has {len(ids)} tokens; this view needs at least {least}", "text")
        return torch.tensor(ids, dtype=torch.long, device=loaded.model.wte.weight.device)


def _to_json(head: dict[str, Any], view: Callable[[Loaded], View], loaded: Loaded) -> bytes:
    try:
        content = {**head, **view(loaded)}
    except InputError as error:
        raise APIError(400, f"text: {error}", "text") from None
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def _edits(body: ReadingRequest, loaded: Loaded) -> Edits:
    """Return the edits that ablate the heads of a request, each once."""
    layers, heads = loaded.model.config.n_layer, loaded.model.config.n_head
    for layer, head in body.ablate or []:
        if layer >= layers or head >= heads:
            raise APIError(
                400, f"ablate: there is no head {head} of layer {layer}; there are {layers} layers of {heads}", "ablate"
            )
    return without_heads(list(dict.fromkeys((layer, head) for layer, head in body.ablate or [])))


def add_inspection(app: FastAPI, services: Services) -> None:
    api = InspectionAPI(services)
    views = {"attention": api.attention, "lens": api.lens, "surprisal": api.surprisal, "picture": api.picture}
    for path, answer in {**views, "continue": api.continuation}.items():
        app.add_api_route(f"/api/{path}", answer, methods=["POST"], response_model=None)
