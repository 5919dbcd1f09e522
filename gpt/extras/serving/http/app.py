"""The application: every endpoint of the server, behind its guard."""

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.middleware.cors import CORSMiddleware

from gpt.checkpoint import Loaded
from gpt.data.tokenizers import convert_newlines
from gpt.extras.serving.http.bodies import BodyRoute, HeldBodies, Worker
from gpt.extras.serving.http.completions import add_completions
from gpt.extras.serving.http.errors import add_error_handlers
from gpt.extras.serving.http.limits import Guard, KnownHosts, Limits
from gpt.extras.serving.http.metrics import add_metrics
from gpt.extras.serving.http.models import Models
from gpt.extras.serving.http.playground import add_playground
from gpt.extras.serving.http.protocol import APIError, TokenizeRequest, naming
from gpt.extras.serving.http.responses import Services
from gpt.system.errors import explained

EXAMPLE = """\
curl {url}/v1/completions -H "Content-Type: application/json" \\
     -d '{{"model": "{model}", "prompt": "The ", "max_tokens": 100, "seed": 7}}'

from openai import OpenAI

client = OpenAI(base_url="{url}/v1", api_key="none")
print(client.completions.create(model="{model}", prompt="The ", max_tokens=100, seed=7).choices[0].text)

Every endpoint and field: {url}/openapi.json
"""


def create_app(
    models: Models,
    limits: Limits,
    hosts: Collection[str] = (),
    api_key: str | None = None,
    origins: Collection[str] = (),
) -> FastAPI:
    """Return the application, whose `state.services` its endpoints share.

    For the last three arguments see `KnownHosts` and `Guard`.
    """
    app = FastAPI(title="gpt", docs_url=None, redoc_url=None)
    app.router.route_class = BodyRoute
    app.add_middleware(HeldBodies, most_bytes=limits.held_bytes)
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=limits.body_bytes)
    app.add_middleware(Guard, hosts=hosts, api_key=api_key, most_bytes=limits.body_bytes, origins=origins)
    if origins:
        app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=["*"])
    app.add_middleware(KnownHosts, hosts=hosts)
    add_metrics(app, models)
    add_error_handlers(app)
    services = Services(models, limits, ThreadPoolExecutor(1, thread_name_prefix="heavy-work"), Worker())
    app.state.services = services
    add_completions(app, services)
    _add_information(app, services)
    add_playground(app, services, needs_key=api_key is not None)
    return app


def _add_information(app: FastAPI, services: Services) -> None:
    """Add the endpoints about the server itself: its models, health, version and an example."""
    models = services.models

    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(*each) for each in (await models.descriptions()).items()]}

    async def get_model(name: str) -> dict[str, Any]:
        return _model(name, await models.describe(name))

    async def tokenize(body: TokenizeRequest) -> JSONResponse:
        """Return the token ids of a text."""
        async with models.use(body.model) as served:
            return await services.worker.run(len(body.prompt), _tokenize, body.prompt, served.loaded)

    async def docs(request: Request) -> PlainTextResponse:
        return PlainTextResponse(EXAMPLE.format(url=str(request.base_url).rstrip("/"), model=models.first))

    async def version() -> dict[str, str]:
        return {"version": app.version}

    async def health() -> dict[str, str]:
        """Say whether requests are accepted."""
        for name, served in models.loaded.items():
            if served.engine.failure is not None:
                raise APIError(503, f"the engine of {name!r} has failed: {explained(served.engine.failure)}")
        return {"status": "ok"}

    app.add_api_route("/v1/models", list_models)
    app.add_api_route("/v1/models/{name:path}", get_model)
    app.add_api_route("/health", health, methods=["GET"])
    app.add_api_route("/health", health, methods=["HEAD"], include_in_schema=False)
    app.add_api_route("/version", version)
    app.add_api_route("/tokenize", tokenize, methods=["POST"], response_model=None)
    app.add_api_route("/docs", docs, include_in_schema=False)


def _tokenize(prompt: str, loaded: Loaded) -> JSONResponse:
    with naming("prompt"):
        ids = loaded.tokenizer.encode(convert_newlines(prompt)).tolist()
    return JSONResponse({"count": len(ids), "max_model_len": loaded.model.config.block_size, "tokens": ids})


def _model(name: str, description: dict[str, int]) -> dict[str, Any]:
    return {"id": name, "object": "model", "owned_by": "gpt", **description}
