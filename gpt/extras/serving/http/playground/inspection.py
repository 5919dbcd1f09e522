"""Endpoints that look into a model while it reads a text.

They show its attention, the logit lens, the surprisal of each token, all of this as one picture, or
how the model continues the text. Their answers have the shape of the data in the pages of
`gpt.show`, whose scripts show them.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, NamedTuple

import torch
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from gpt.checkpoint import Loaded
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
from gpt.generation.text import encode_typed_text
from gpt.system.errors import InputError

NUM_ALTERNATIVES = 10
"""Most likely tokens that the logit lens shows at each position of each layer."""
ALTERNATIVE_BYTES = 24
"""About how many bytes one of them takes in JSON."""
MEMORY_PER_BYTE = 16
"""Bytes of activations that are allowed for each byte of the largest answer."""
Head = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=2, max_length=2)]


class ReadingRequest(BaseModel):
    """A text to look at."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str = Field(min_length=1, description="What the model reads.")
    model: str | None = Field(None, description="One of /v1/models; left out: the server's first.")
    ablate: list[Head] = Field(
        [], description="Heads whose output is set to zero, each [layer, head]."
    )
    count: int = Field(
        64, ge=1, le=128, description="Tokens to write, where the text is continued."
    )
    last: int | None = Field(
        None,
        ge=1,
        description="Read no more than this many tokens, those at the end of the text, and answer "
        "with `read`, their number, where there are others; left out: a text longer than the "
        "window is refused.",
    )


VIEWS = ("attention", "lens", "surprisal", "picture", "continue")


def add_inspection(app: FastAPI, services: Services) -> None:
    """Add an endpoint for each view."""
    inspector = Inspector(services)
    for name in VIEWS:
        endpoint = inspector.endpoint(name)
        app.add_api_route(f"/api/{name}", endpoint, methods=["POST"], response_model=None)


class Inspector:
    """Computes one view at a time, beside the event loop and the engine."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._turn = asyncio.Lock()
        self._under_way = 0  # requests, of which all but one wait for their turn

    def endpoint(self, name: str) -> Callable[..., Coroutine[Any, Any, Response]]:
        """Return the endpoint of a view."""

        async def answer(request: Request, body: ReadingRequest) -> Response:
            """Look into a model while it reads a text."""
            return await self._answer(name, request, body)

        return answer

    async def _answer(self, name: str, request: Request, body: ReadingRequest) -> Response:
        """Compute a view when it is its turn; raise APIError if too many wait already."""
        services = self._services
        if self._under_way >= services.limits.views:
            message = f"{self._under_way} texts wait to be looked into; try again in a moment"
            raise APIError(429, message, code="queue_full")
        self._under_way += 1
        try:
            async with services.models.use(body.model) as served, self._turn:
                if await request.is_disconnected():  # while it waited: nobody would get the view
                    return Response(status_code=CLIENT_GONE)
                loop = asyncio.get_running_loop()
                content = await loop.run_in_executor(
                    services.executor, _compute, name, body, served.loaded, services.limits
                )
                return Response(content, media_type="application/json")
        finally:
            self._under_way -= 1


def _compute(name: str, body: ReadingRequest, loaded: Loaded, limits: Limits) -> bytes:
    """Return a view of the text of a request as JSON."""
    read = _read(name, body, loaded, limits)
    edits = _edits(body, loaded)
    needed = _view_bytes(name, loaded, len(read.ids))
    if needed > limits.view_bytes:
        raise APIError(
            400,
            f"text: what there is to show takes {needed:,} bytes, more than this server's limit of "
            f"{limits.view_bytes:,}; shorten the text",
            "text",
        )
    idx = torch.tensor(read.ids, dtype=torch.long, device=loaded.model.wte.weight.device)  # (T,)
    max_memory = MEMORY_PER_BYTE * limits.view_bytes
    try:
        view = _view(name, loaded, idx, edits, body.count, max_memory)
        content = page_data(name, view)
    except InputError as error:
        raise APIError(400, f"text: {error}", "text") from None
    if not read.is_whole:
        content = {**content, "read": len(read.ids)}
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def _view(
    name: str, loaded: Loaded, idx: Tensor, edits: Edits, count: int, max_memory: int
) -> View:
    """Return a view of a model that reads the ids (T,) of a text.

    Args:
        count: tokens to write, where the text is continued.
        max_memory: most bytes of activations.
    """
    model = loaded.model
    tokenizer = loaded.tokenizer
    if name == "attention":
        return attention_view(model, tokenizer, idx, edits, max_memory)
    if name == "lens":
        return lens_view(model, tokenizer, idx, NUM_ALTERNATIVES, edits, max_memory)
    if name == "picture":
        return picture_view(model, tokenizer, idx, edits, max_memory)
    if name == "continue":
        return continuation_view(model, tokenizer, idx, count, edits)
    assert name == "surprisal"
    if len(idx) < 2:
        raise InputError("it has 1 token; this view needs at least 2")
    found = surprisal(model, idx, edits=edits)
    require_finite(found.bits)
    labels = labels_of(tokenizer, idx.tolist())
    bits = [None, *found.bits.tolist()]  # nothing predicts the first token
    return {"labels": labels, "bits": bits, "mean_bits": found.mean_bits}


def _view_bytes(name: str, loaded: Loaded, num_tokens: int) -> int:
    """Return about how many bytes a view takes, before it is computed; 0 where they are few."""
    config = loaded.model.config
    if name == "attention":
        return packed_bytes(config.n_layer, config.n_head, num_tokens)
    if name == "picture":
        return picture_bytes(config, num_tokens)
    if name == "lens":
        # the logits after each layer, and those of the embeddings before the first
        num_distributions = (config.n_layer + 1) * num_tokens
        return num_distributions * NUM_ALTERNATIVES * ALTERNATIVE_BYTES
    return 0


class _Read(NamedTuple):
    """The token ids that a model reads, and whether they are the whole text."""

    ids: list[int]
    is_whole: bool


def _read(name: str, body: ReadingRequest, loaded: Loaded, limits: Limits) -> _Read:
    """Return the tokens of a text, the last ones if a request asks for these, or raise APIError if
    they are too many.
    """
    text = body.text
    tokenizer = loaded.tokenizer
    max_tokens = limits.view_tokens
    if name != "continue":  # a text that is continued may be longer than the window
        max_tokens = min(loaded.model.config.block_size, max_tokens)
    # A character is at least one byte. So no more than these can be in that many tokens, and no
    # more are encoded: a text may have a megabyte.
    longest_token = max(len(tokenizer.token_bytes(index)) for index in range(tokenizer.vocab_size))
    max_characters = max_tokens * longest_token
    if len(text) > max_characters and body.last is None:
        found = f"text: it has {len(text)} characters"
        raise APIError(400, f"{found}, more than {max_tokens} tokens can have", "text")
    with naming("text"):
        ids = encode_typed_text(tokenizer, text[-max_characters:], loaded.config.sample)
    is_whole = len(text) <= max_characters
    if body.last is not None:
        count = min(body.last, max_tokens)
        is_whole = is_whole and len(ids) <= count
        ids = ids[-count:]
    if len(ids) > max_tokens:
        found = f"text: it has {len(ids)} tokens"
        raise APIError(400, f"{found}, more than the {max_tokens} allowed", "text")
    return _Read(ids, is_whole)


def _edits(body: ReadingRequest, loaded: Loaded) -> Edits:
    """Return the edits that ablate the heads of a request, each once."""
    config = loaded.model.config
    heads: list[tuple[int, int]] = []
    for layer, head in body.ablate:
        if layer >= config.n_layer or head >= config.n_head:
            found = f"ablate: there is no head {head} of layer {layer}"
            there_are = f"there are {config.n_layer} layers of {config.n_head}"
            raise APIError(400, f"{found}; {there_are}", "ablate")
        if (layer, head) not in heads:
            heads.append((layer, head))
    return without_heads(heads)
