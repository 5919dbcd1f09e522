"""The page at `/`: a playground for the models, and the endpoints that it asks.

A view of the page is a module of `gpt/extras/web/src`, which `playground.js` gives to `startShell`.
It asks the server through a method of `ServerSource` there, for which there is an endpoint in a
module here. Each of these modules has a function that `add_playground` calls. What computes with a
model runs in `Services.executor`.
"""

import asyncio
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, Response

from gpt.config import SampleConfig
from gpt.config.filters import FILTERS
from gpt.extras.about import about_loaded
from gpt.extras.accounting.parameters import count_parameters
from gpt.extras.export.card import render_card
from gpt.extras.inspection.example import example_of
from gpt.extras.inspection.validation_examples import validation_examples
from gpt.extras.inspection.views.tokens import kind_of
from gpt.extras.serving.http.playground.generate import add_generate
from gpt.extras.serving.http.playground.inspection import add_inspection
from gpt.extras.serving.http.playground.runs import add_runs
from gpt.extras.serving.http.protocol import APIError, JSONText
from gpt.extras.serving.http.responses import Services
from gpt.extras.web.document import PLAYGROUND, Heading, content_policy, render_document
from gpt.extras.web.marks import marks_of
from gpt.system.errors import GPTError

MAX_ADDRESSES = 8
"""Addresses of the server for which the page is kept: under several names it has several."""


def add_playground(app: FastAPI, services: Services, *, needs_key: bool) -> None:
    """Add the page, which asks its reader for the API key if there is one, and its endpoints."""
    schemas = SampleConfig.model_json_schema()["properties"]
    filters = {name: schemas[name] for name in FILTERS}
    max_tokens = services.limits.max_tokens
    facts = {"needsKey": needs_key, "mostTokens": max_tokens, "filters": filters}
    _add_page(app, services, facts)
    _add_card(app, services)
    _add_model_info(app, services)
    add_generate(app, services)
    add_inspection(app, services)
    add_runs(app, services.models.runs, services.models.folders)


def _add_page(app: FastAPI, services: Services, facts: dict[str, Any]) -> None:
    """Add `GET /`; `facts` are values that the script of the page reads from it."""
    title = f"{services.models.first}: a small GPT that writes"

    @lru_cache(MAX_ADDRESSES)
    def render(base_url: str) -> str:
        # Other sites show a picture only by its whole address. Without the key they get none.
        image = "" if facts["needsKey"] else f"{base_url}card.png"
        return render_document(PLAYGROUND, facts, Heading(title, image=image))

    headers = {
        # no page of another site may show this one in a frame and let its reader click there
        "Content-Security-Policy": f"{content_policy(PLAYGROUND)}; frame-ancestors 'none'",
        "Referrer-Policy": "no-referrer",
        # a browser asks again each time, since another version of the server may have another page
        "Cache-Control": "no-cache",
    }

    async def show_page(request: Request) -> HTMLResponse:
        return HTMLResponse(render(str(request.base_url)), headers=headers)

    app.add_api_route("/", show_page, include_in_schema=False)


def _add_card(app: FastAPI, services: Services) -> None:
    """Add `GET /card.png`: a text that the first model has written, as a picture.

    It loads no model, since the page of any site can make a browser send a GET.
    """
    models = services.models

    async def show_card() -> Response:
        if models.first not in models.loaded:
            raise APIError(404, "the model is not loaded yet, and there is no picture of its text")
        async with models.use(models.first) as served:
            if served.card is None:  # drawn once, then kept with the model
                loop = asyncio.get_running_loop()
                draw = loop.run_in_executor(services.executor, render_card, served.loaded)
                try:
                    served.card = await draw
                except GPTError as error:  # there may be no matplotlib
                    raise APIError(404, f"there is no picture: {error}") from None
            return Response(served.card, media_type="image/png")

    app.add_api_route("/card.png", show_card, include_in_schema=False)


def _add_model_info(app: FastAPI, services: Services) -> None:
    """Add `POST /api/models/{name}`: what the page says about a model.

    It has the first values of the page's form, too. It loads the model, which is why it is no GET:
    the page of any site can make a browser send a GET without an origin.
    """

    async def describe(name: str) -> dict[str, Any]:
        """Describe a model, and load it.

        `example` is a line or so that it has written, if it can write, and `examples` are short
        texts of its validation split.
        """
        async with services.models.use(name) as served:
            loaded = served.loaded
            loop = asyncio.get_running_loop()
            if served.example is None:  # written once, then kept with the model
                served.example = await loop.run_in_executor(services.executor, example_of, loaded)
                served.examples = await loop.run_in_executor(
                    services.executor, validation_examples, loaded
                )
            config = loaded.model.config
            sample = loaded.config.sample
            return {
                "model": name,
                "step": loaded.state.get("step", 0),
                "parameters": count_parameters(config).total,
                "n_layer": config.n_layer,
                "n_head": config.n_head,
                "block_size": config.block_size,
                "vocab_size": loaded.tokenizer.vocab_size,
                "token": kind_of(loaded.tokenizer),
                "marks": marks_of(loaded.tokenizer, sample),
                # tokens of an item of a list, of which a request may ask for no more than the limit
                "longest_item": min(sample.max_new_tokens, services.limits.max_tokens),
                "characters": getattr(loaded.tokenizer, "itos", None),
                "example": served.example,
                "examples": served.examples,
                "about": asdict(await loop.run_in_executor(None, about_loaded, loaded)),
                "sample": {name: getattr(sample, name) for name in ("temperature", *FILTERS)},
            }

    app.add_api_route(
        "/api/models/{name:path}", describe, methods=["POST"], response_class=JSONText
    )
