"""The page at `/`: a playground for the models, and the endpoints that it asks.

A view of the page is a module of `gpt/extras/web/src`, which `playground.js` gives to `startShell`.
It asks the server through a method of `ServerSource` there, for which there is an endpoint in a
module here. Each of these modules has a function that `add_playground` calls. What computes with a
model runs in `Services.executor`.
"""

import asyncio
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from gpt.config import SampleConfig
from gpt.config.filters import FILTERS
from gpt.extras.about import about_loaded
from gpt.extras.accounting.parameters import count_parameters
from gpt.extras.inspection.example import example_of
from gpt.extras.inspection.validation_examples import validation_examples
from gpt.extras.inspection.views.tokens import kind_of
from gpt.extras.serving.http.playground.generate import add_generate
from gpt.extras.serving.http.playground.inspection import add_inspection
from gpt.extras.serving.http.playground.runs import add_runs
from gpt.extras.serving.http.protocol import JSONText
from gpt.extras.serving.http.responses import Services
from gpt.extras.web.document import PLAYGROUND, content_policy, render_document
from gpt.extras.web.marks import marks_of


def add_playground(app: FastAPI, services: Services, *, needs_key: bool) -> None:
    """Add the page, which asks its reader for the API key if there is one, and its endpoints."""
    schemas = SampleConfig.model_json_schema()["properties"]
    filters = {name: schemas[name] for name in FILTERS}
    max_tokens = services.limits.max_tokens
    _add_page(app, {"needsKey": needs_key, "mostTokens": max_tokens, "filters": filters})
    _add_model_info(app, services)
    add_generate(app, services)
    add_inspection(app, services)
    add_runs(app, services.models.runs, services.models.folders)


def _add_page(app: FastAPI, facts: dict[str, Any]) -> None:
    """Add `GET /`; `facts` are values that the script of the page reads from it."""
    document = render_document(PLAYGROUND, facts, title="gpt")
    headers = {
        # no page of another site may show this one in a frame and let its reader click there
        "Content-Security-Policy": f"{content_policy(PLAYGROUND)}; frame-ancestors 'none'",
        "Referrer-Policy": "no-referrer",
        # a browser asks again each time, since another version of the server may have another page
        "Cache-Control": "no-cache",
    }

    async def show_page() -> HTMLResponse:
        return HTMLResponse(document, headers=headers)

    app.add_api_route("/", show_page, include_in_schema=False)


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
