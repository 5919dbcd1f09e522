"""The application: every endpoint of the server, behind its guard."""

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import HTMLResponse

from gpt.errors import explained
from gpt.serving.http.completions import add_completions
from gpt.serving.http.limits import Guard, Limits
from gpt.serving.http.metrics import CONTENT_TYPE, CountAnswers, Metrics
from gpt.serving.http.models import Models
from gpt.serving.http.playground import add_playground
from gpt.serving.http.protocol import APIError, ErrorAnswer, Model, ModelList, Responses, add_error_handlers
from gpt.serving.http.reference import reference_page
from gpt.serving.http.responses import ResponseRegistry, Services

DESCRIPTION = "Text from character-level GPTs, by the OpenAI completions protocol."
ERROR = {"model": ErrorAnswer, "description": "Error"}


def create_app(
    models: Models,
    limits: Limits,
    hosts: Collection[str] = (),
    api_key: str | None = None,
) -> FastAPI:
    """Return the application, whose `state.responses` is the registry of what it answers.

    Requests must name one of `hosts` or localhost, see `Guard`, and have the `api_key`, if there is one.
    """
    app = FastAPI(title="gpt", description=DESCRIPTION, docs_url=None, redoc_url=None, responses={"default": ERROR})
    app.add_middleware(Guard, body_bytes=limits.body_bytes, hosts=hosts, api_key=api_key)
    add_error_handlers(app)
    metrics = Metrics(models)
    # outside of the guard, whose answers are counted too
    app.add_middleware(CountAnswers, count=metrics.count_answer)
    app.state.responses = responses = ResponseRegistry(metrics, limits.values)
    services = Services(models, limits, responses, ThreadPoolExecutor(1, thread_name_prefix="heavy-work"))
    add_completions(app, services)
    _add_information(app, services)
    add_playground(app, services, needs_key=api_key is not None)
    if api_key is not None:
        _document_key(app.openapi())
    return app


def _add_information(app: FastAPI, services: Services) -> None:
    """Add the endpoints about the server itself: models, health, metrics, reference."""
    models, responses = services.models, services.responses

    def list_models() -> ModelList:
        """List the available models."""
        return ModelList(object="list", data=[_model(name, created) for name, created in models.names().items()])

    def get_model(name: str) -> Model:
        """Describe one model."""
        created = models.names().get(name)
        if created is None:
            raise APIError(404, f"there is no model {name!r}; /v1/models lists them", "model", "model_not_found")
        return _model(name, created)

    async def health() -> dict[str, str]:
        """Say whether requests are accepted."""
        responses.check()
        for name, served in models.loaded.items():
            if served.engine.failure is not None:
                raise APIError(503, f"the engine of {name!r} has failed: {explained(served.engine.failure)}")
        return {"status": "ok"}

    async def read_metrics() -> Response:
        """Return counts and times in Prometheus's text format."""
        return Response(responses.metrics.text(), media_type=CONTENT_TYPE)

    async def docs() -> HTMLResponse:
        return HTMLResponse(reference_page(app.openapi()))

    text: Responses = {200: {"content": {"text/plain": {}}}}
    app.add_api_route("/v1/models", list_models)
    app.add_api_route("/v1/models/{name:path}", get_model)
    app.add_api_route("/health", health)
    app.add_api_route("/metrics", read_metrics, response_class=Response, responses=text)
    app.add_api_route("/docs", docs, include_in_schema=False)


def _model(name: str, created: int) -> Model:
    return Model(id=name, object="model", created=created, owned_by="gpt")


def _document_key(document: dict[str, Any]) -> None:
    """Say in an OpenAPI document which endpoints need the key."""
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"key": []}]
    document["paths"]["/health"]["get"]["security"] = []
