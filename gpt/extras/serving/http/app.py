"""The FastAPI application: every endpoint of the server, behind the checks of hosts, origins, keys
and sizes.
"""

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

EXAMPLE_TEMPLATE = """\
curl {url}/v1/completions -H "Content-Type: application/json" \\
     -d '{{"model": "{model}", "prompt": "The ", "max_tokens": 100, "seed": 7}}'

from openai import OpenAI

client = OpenAI(base_url="{url}/v1", api_key="none")
completion = client.completions.create(model="{model}", prompt="The ", max_tokens=100, seed=7)
print(completion.choices[0].text)

Every endpoint and field: {url}/openapi.json
"""
"""The text of `/docs`. FastAPI's own page of this path loads its script from a foreign site."""


def create_app(
    models: Models,
    limits: Limits,
    hosts: Collection[str] = (),
    api_key: str | None = None,
    origins: Collection[str] = (),
) -> FastAPI:
    """Return the application.

    Its endpoints share what `app.state.services` holds.

    Args:
        models: the models that can be asked for.
        limits: what a request may use.
        hosts: names that the server is known by, see `KnownHosts`.
        api_key: the key that requests must have, see `Guard`.
        origins: sites whose pages may send requests, see `Guard`.
    """
    app = FastAPI(title="gpt", docs_url=None, redoc_url=None)
    app.router.route_class = BodyRoute
    _add_checks(app, limits, hosts, api_key, origins)
    add_metrics(app, models)
    add_error_handlers(app)
    heavy_work = ThreadPoolExecutor(1, thread_name_prefix="heavy-work")
    services = Services(models, limits, heavy_work, Worker())
    app.state.services = services
    add_completions(app, services)
    _add_information(app, services)
    add_playground(app, services, needs_key=api_key is not None)
    return app


def _add_checks(
    app: FastAPI,
    limits: Limits,
    hosts: Collection[str],
    api_key: str | None,
    origins: Collection[str],
) -> None:
    """Add the middleware that refuses requests. What is added last sees a request first."""
    app.add_middleware(HeldBodies, max_bytes=limits.held_bytes)
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=limits.body_bytes)
    app.add_middleware(
        Guard, hosts=hosts, api_key=api_key, max_bytes=limits.body_bytes, origins=origins
    )
    if origins:
        # before the guard, since the preflight of a browser (OPTIONS) carries no API key
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
        )
    app.add_middleware(KnownHosts, hosts=hosts)


def _add_information(app: FastAPI, services: Services) -> None:
    """Add the endpoints about the server itself: its models, health, version and an example."""
    models = services.models

    async def list_models() -> dict[str, Any]:
        descriptions = await models.descriptions()
        data = [_model_object(name, fields) for name, fields in descriptions.items()]
        return {"object": "list", "data": data}

    async def get_model(name: str) -> dict[str, Any]:
        return _model_object(name, await models.describe(name))

    async def tokenize(body: TokenizeRequest) -> JSONResponse:
        """Return the token ids of a text."""
        prompt = body.prompt
        async with models.use(body.model) as served:
            return await services.worker.run(len(prompt), _tokenize, prompt, served.loaded)

    async def docs(request: Request) -> PlainTextResponse:
        url = str(request.base_url).rstrip("/")
        return PlainTextResponse(EXAMPLE_TEMPLATE.format(url=url, model=models.first))

    async def version() -> dict[str, str]:
        return {"version": app.version}

    async def health() -> dict[str, str]:
        """Say whether requests are accepted."""
        for name, served in models.loaded.items():
            failure = served.engine.failure
            if failure is not None:
                raise APIError(503, f"the engine of {name!r} has failed: {explained(failure)}")
        return {"status": "ok"}

    app.add_api_route("/v1/models", list_models)
    app.add_api_route("/v1/models/{name:path}", get_model)
    app.add_api_route("/health", health, methods=["GET"])
    app.add_api_route("/health", health, methods=["HEAD"], include_in_schema=False)
    app.add_api_route("/version", version)
    app.add_api_route("/tokenize", tokenize, methods=["POST"], response_model=None)
    app.add_api_route("/docs", docs, include_in_schema=False)


def _tokenize(prompt: str, loaded: Loaded) -> JSONResponse:
    """Return an answer with the token ids of a text, in the fields of vLLM's `/tokenize`."""
    with naming("prompt"):
        ids = loaded.tokenizer.encode(convert_newlines(prompt)).tolist()
    block_size = loaded.model.config.block_size
    return JSONResponse({"count": len(ids), "max_model_len": block_size, "tokens": ids})


def _model_object(name: str, description: dict[str, int]) -> dict[str, Any]:
    """Return a model as the protocol describes it, with the fields of `Models.describe`."""
    return {"id": name, "object": "model", "owned_by": "gpt", **description}
