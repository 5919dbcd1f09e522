"""The application: every endpoint of the server, behind its guard."""

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import FastAPI
from starlette.middleware.body_limit import RequestBodyLimitMiddleware

from gpt.extras.serving.http.completions import add_completions
from gpt.extras.serving.http.limits import Guard, Limits
from gpt.extras.serving.http.models import Models
from gpt.extras.serving.http.playground import add_playground
from gpt.extras.serving.http.protocol import APIError, add_error_handlers
from gpt.extras.serving.http.responses import Services
from gpt.system.errors import explained


def create_app(models: Models, limits: Limits, hosts: Collection[str] = (), api_key: str | None = None) -> FastAPI:
    """Return the application, whose `state.services` its endpoints share; for `hosts` and `api_key` see `Guard`."""
    app = FastAPI(title="gpt", docs_url=None, redoc_url=None)
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=limits.body_bytes)
    app.add_middleware(Guard, hosts=hosts, api_key=api_key, most_bytes=limits.body_bytes)
    add_error_handlers(app)
    services = Services(models, limits, ThreadPoolExecutor(1, thread_name_prefix="heavy-work"))
    app.state.services = services
    add_completions(app, services)
    _add_information(app, services)
    add_playground(app, services, needs_key=api_key is not None)
    return app


def _add_information(app: FastAPI, services: Services) -> None:
    """Add the endpoints about the server itself: models and health."""
    models = services.models

    def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(name, created) for name, created in models.names().items()]}

    def get_model(name: str) -> dict[str, Any]:
        return _model(name, models.check(name))

    async def health() -> dict[str, str]:
        """Say whether requests are accepted."""
        for name, served in models.loaded.items():
            if served.engine.failure is not None:
                raise APIError(503, f"the engine of {name!r} has failed: {explained(served.engine.failure)}")
        return {"status": "ok"}

    app.add_api_route("/v1/models", list_models)
    app.add_api_route("/v1/models/{name:path}", get_model)
    app.add_api_route("/health", health)


def _model(name: str, created: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "gpt"}
