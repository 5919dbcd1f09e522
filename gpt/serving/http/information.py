"""Endpoints about the server itself: models, health, metrics, reference."""

from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import HTMLResponse

from gpt.errors import explained
from gpt.serving.http.drain import Drain
from gpt.serving.http.errors import APIError
from gpt.serving.http.metrics import CONTENT_TYPE, Metrics
from gpt.serving.http.models import Models
from gpt.serving.http.protocol import Model, ModelList
from gpt.serving.http.reference import reference_page

Responses = dict[int | str, dict[str, Any]]


def add_information(app: FastAPI, models: Models, drain: Drain, metrics: Metrics, errors: Responses) -> None:
    """Add the models, the health, the metrics and the reference to an application.

    Args:
        app: the application to extend.
        models: the models it serves.
        drain: knows whether requests are accepted.
        metrics: the server's metrics.
        errors: how errors are documented.
    """
    information = Information(app, models, drain, metrics)
    app.add_api_route("/v1/models", information.list_models, responses=errors)
    app.add_api_route("/v1/models/{name:path}", information.get_model, responses=errors)
    app.add_api_route("/health", information.health, responses=errors)
    text: Responses = {200: {"content": {"text/plain": {}}}}
    app.add_api_route("/metrics", information.read_metrics, response_class=Response, responses={**text, **errors})
    app.add_api_route("/docs", information.docs, include_in_schema=False)


class Information:
    """Answers questions about a server; see `add_information`."""

    def __init__(self, app: FastAPI, models: Models, drain: Drain, metrics: Metrics) -> None:
        self._app, self._models, self._drain, self._metrics = app, models, drain, metrics

    async def list_models(self) -> ModelList:
        """List the available models."""
        return ModelList(object="list", data=[_model(name, created) for name, created in self._models.names().items()])

    async def get_model(self, name: str) -> Model:
        """Describe one model."""
        created = self._models.names().get(name)
        if created is None:
            raise APIError(404, f"there is no model {name!r}; /v1/models lists them", "model", "model_not_found")
        return _model(name, created)

    async def health(self) -> dict[str, str]:
        """Say whether requests are accepted."""
        self._drain.check()
        for name, served in self._models.loaded.items():
            if served.engine.failure is not None:
                raise APIError(503, f"the engine of {name!r} has failed: {explained(served.engine.failure)}")
        return {"status": "ok"}

    async def read_metrics(self) -> Response:
        """Return counts and times in Prometheus's text format."""
        return Response(self._metrics.text(), media_type=CONTENT_TYPE)

    async def docs(self) -> HTMLResponse:
        """Show this reference."""
        return HTMLResponse(reference_page(self._app.openapi()))


def _model(name: str, created: int) -> Model:
    return Model(id=name, object="model", created=created, owned_by="gpt")
