"""The endpoints of the server."""

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import HTMLResponse, JSONResponse

from gpt.serving.http.completions import Completions
from gpt.serving.http.drain import Drain
from gpt.serving.http.errors import APIError, add_error_handlers
from gpt.serving.http.guards import Guard
from gpt.serving.http.limits import Limits
from gpt.serving.http.metrics import CONTENT_TYPE, Metrics
from gpt.serving.http.models import Models
from gpt.serving.http.playground import add_playground
from gpt.serving.http.protocol import Completion, ErrorAnswer, Model, ModelList
from gpt.serving.http.reference import reference_page

Responses = dict[int | str, dict[str, Any]]
DESCRIPTION = "Text from character-level GPTs, by the OpenAI completions protocol."


def create_app(
    models: Models, limits: Limits, drain: Drain, hosts: Collection[str] = (), api_key: str | None = None
) -> FastAPI:
    """Return the application; to be called on the event loop.

    Args:
        models: that can be asked for.
        limits: of a request.
        drain: ends it.
        hosts: names that the server is known by beside localhost, see `Guard`.
        api_key: that requests are to have; None: none.
    """
    app = FastAPI(title="gpt", description=DESCRIPTION, docs_url=None, redoc_url=None)
    app.add_middleware(Guard, body_bytes=limits.body_bytes, hosts=hosts, api_key=api_key)
    add_error_handlers(app)
    metrics = Metrics(models)
    heavy = ThreadPoolExecutor(max_workers=1, thread_name_prefix="heavy-work")
    errors: Responses = {"default": {"model": ErrorAnswer, "description": "Error"}}
    answers: Responses = {200: {"model": Completion, "content": {"text/event-stream": {}}, "description": "Completion"}}
    app.add_api_route(
        "/v1/completions",
        Completions(models, limits, drain, metrics, heavy).create,
        methods=["POST"],
        response_model=None,
        responses={**answers, **errors},
    )

    async def list_models() -> ModelList:
        """List the models that can be asked for."""
        return ModelList(object="list", data=[_model(name, created) for name, created in models.names().items()])

    async def get_model(name: str) -> Model:
        """Describe one model."""
        created = models.names().get(name)
        if created is None:
            raise APIError(404, f"there is no model {name!r}; /v1/models lists them", "model", "model_not_found")
        return _model(name, created)

    async def health() -> JSONResponse:
        """Say whether requests are accepted."""
        drain.check()
        for name, served in models.loaded.items():
            if served.engine.failure is not None:
                raise APIError(503, f"the engine of {name!r} has failed: {served.engine.failure}")
        return JSONResponse({"status": "ok"})

    async def read_metrics() -> Response:
        """Return counts and times in Prometheus's text format."""
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    async def docs() -> HTMLResponse:
        """Show this reference."""
        return HTMLResponse(reference_page(app.openapi()))

    app.add_api_route("/v1/models", list_models, responses=errors)
    app.add_api_route("/v1/models/{name:path}", get_model, responses=errors)
    app.add_api_route("/health", health, responses=errors)
    app.add_api_route("/metrics", read_metrics, response_class=Response)
    app.add_api_route("/docs", docs, include_in_schema=False)
    add_playground(app, models, heavy)
    return app


def _model(name: str, created: int) -> Model:
    return Model(id=name, object="model", created=created, owned_by="gpt")
