"""The page at `/`: a playground in front of the models, and the endpoints that it asks.

A view is a module of `gpt/extras/web/src` that `playground.js` gives to `startShell`; what it asks of the server is a
method of `ServerSource` there, and an endpoint in a module here, which has a function that `add_playground` calls.
Heavy work goes to `Services.executor`.
"""

import asyncio
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from gpt.config import SampleConfig
from gpt.config.filters import FILTERS
from gpt.extras.accounting.parameters import count_parameters
from gpt.extras.inspection.example import example_of
from gpt.extras.inspection.views.tokens import kind_of
from gpt.extras.serving.http.playground.generate import add_generate
from gpt.extras.serving.http.playground.inspection import add_inspection
from gpt.extras.serving.http.playground.runs import add_runs
from gpt.extras.serving.http.protocol import JSONText
from gpt.extras.serving.http.responses import Services
from gpt.extras.web.document import PLAYGROUND, content_policy, render_document


def add_playground(app: FastAPI, services: Services, *, needs_key: bool) -> None:
    """Add the page, which asks its reader for the API key if there is one, and its endpoints."""
    schemas = SampleConfig.model_json_schema()["properties"]
    filters = {name: schemas[name] for name in FILTERS}
    _add_page(app, {"needsKey": needs_key, "mostTokens": services.limits.max_tokens, "filters": filters})
    _add_model_info(app, services)
    add_generate(app, services)
    add_inspection(app, services)
    add_runs(app, services.models.runs, services.models.folders)


def _add_page(app: FastAPI, facts: dict[str, Any]) -> None:
    """Add `GET /`; `facts` are values that its script finds."""
    document = render_document(PLAYGROUND, facts, title="gpt")
    policy = f"{content_policy(PLAYGROUND)}; frame-ancestors 'none'"
    headers = {"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache"}

    async def show_page() -> HTMLResponse:
        return HTMLResponse(document, headers=headers)

    app.add_api_route("/", show_page, include_in_schema=False)


def _add_model_info(app: FastAPI, services: Services) -> None:
    """Add `POST /api/models/{name}`: what a reader is told about a model, and what its form starts with.

    It is no GET, since a browser sends a GET for a page of another site without saying for which.
    """

    async def describe(name: str) -> dict[str, Any]:
        """Describe a model, which is loaded for it; `example` is a line or so that it has written, if it can."""
        async with services.models.use(name) as served:
            loaded = served.loaded
            if served.example is None:
                loop = asyncio.get_running_loop()
                served.example = await loop.run_in_executor(services.executor, example_of, loaded)
            config, sample = loaded.model.config, loaded.config.sample
            return {
                "model": name,
                "step": loaded.state.get("step", 0),
                "parameters": count_parameters(config).total,
                "n_layer": config.n_layer,
                "n_head": config.n_head,
                "block_size": config.block_size,
                "vocab_size": loaded.tokenizer.vocab_size,
                "token": kind_of(loaded.tokenizer),
                "characters": getattr(loaded.tokenizer, "itos", None),
                "example": served.example,
                "sample": {name: getattr(sample, name) for name in ("temperature", *FILTERS)},
            }

    app.add_api_route("/api/models/{name:path}", describe, methods=["POST"], response_class=JSONText)
