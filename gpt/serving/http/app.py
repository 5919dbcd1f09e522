"""The application: every endpoint of the server, behind its guard."""

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import FastAPI

from gpt.serving.http.answers import Answers
from gpt.serving.http.completions import Completions
from gpt.serving.http.drain import Drain
from gpt.serving.http.errors import add_error_handlers
from gpt.serving.http.guards import Guard
from gpt.serving.http.information import Responses, add_information
from gpt.serving.http.limits import Limits
from gpt.serving.http.metrics import CountAnswers, Metrics
from gpt.serving.http.models import Models
from gpt.serving.http.playground import add_playground
from gpt.serving.http.playground.runs import Runs
from gpt.serving.http.playground.runs_api import add_runs
from gpt.serving.http.playground.training_api import BODY_BYTES, START, TrainingEndpoints
from gpt.serving.http.playground.trainings import Trainings
from gpt.serving.http.protocol import Completion, ErrorAnswer

DESCRIPTION = "Text from character-level GPTs, by the OpenAI completions protocol."
ERRORS: Responses = {"default": {"model": ErrorAnswer, "description": "Error"}}
ANSWERS: Responses = {200: {"model": Completion, "content": {"text/event-stream": {}}, "description": "Completion"}}

LARGER = {START: BODY_BYTES}
"""Most bytes of a body by path, where more than usual are allowed."""


def create_app(
    models: Models,
    limits: Limits,
    drain: Drain,
    hosts: Collection[str] = (),
    api_key: str | None = None,
    trainings: Trainings | None = None,
) -> FastAPI:
    """Return the application; must be called on the event loop.

    Args:
        models: the models it serves.
        limits: limits of a request.
        drain: ends the application.
        hosts: names of the server besides localhost, see `Guard`.
        api_key: key that requests must have; None: none is required.
        trainings: starts trainings from the page; None: it cannot.
    """
    app = FastAPI(title="gpt", description=DESCRIPTION, docs_url=None, redoc_url=None)
    app.add_middleware(Guard, body_bytes=limits.body_bytes, hosts=hosts, api_key=api_key, larger=LARGER)
    add_error_handlers(app)
    metrics = Metrics(models)
    app.state.count_answer = metrics.count_answer
    app.add_middleware(CountAnswers, count=metrics.count_answer)  # outside of the guard
    heavy = ThreadPoolExecutor(max_workers=1, thread_name_prefix="heavy-work")
    answers = Answers(drain, metrics, limits.values)
    completions = Completions(models, limits, answers, heavy)
    app.add_api_route(
        "/v1/completions",
        completions.create,
        methods=["POST"],
        response_model=None,
        responses={**ANSWERS, **ERRORS},
    )
    add_information(app, models, drain, metrics, ERRORS)
    add_playground(app, models, limits, answers, heavy, ERRORS, needs_key=api_key is not None)
    add_runs(app, Runs(models.runs), ERRORS)
    TrainingEndpoints(trainings, drain, heavy).add_to(app)
    if api_key is not None:
        _document_key(app.openapi())
    return app


def _document_key(document: dict[str, Any]) -> None:
    """Say in an OpenAPI document which endpoints need the key."""
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"key": []}]
    document["paths"]["/health"]["get"]["security"] = []
