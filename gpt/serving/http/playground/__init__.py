"""The page at `/`: a playground in front of the models, and the endpoints that it asks.

A view is a module of `gpt/web/src` that `playground.js` gives to `startShell`; what it asks of the server is a method
of `ServerSource` there, and an endpoint in a module here, which has a function that `add_playground` calls. Heavy work
goes to `heavy`, an executor of one thread.
"""

from concurrent.futures import Executor

from fastapi import FastAPI

from gpt.config import SamplingParams
from gpt.config.filter_fields import all_filters
from gpt.serving.http.answers import Answers
from gpt.serving.http.information import Responses
from gpt.serving.http.limits import Limits
from gpt.serving.http.models import Models
from gpt.serving.http.playground.facts import add_facts
from gpt.serving.http.playground.generate import add_generate
from gpt.serving.http.playground.page import add_page
from gpt.serving.http.playground.readings import add_readings


def add_playground(
    app: FastAPI,
    models: Models,
    limits: Limits,
    answers: Answers,
    heavy: Executor,
    errors: Responses,
    *,
    needs_key: bool,
) -> None:
    """Add the playground's page and endpoints to the server's application.

    Args:
        app: the server's application.
        models: the models it serves.
        limits: limits of a request.
        answers: opens new answers.
        heavy: runs other computations one at a time, since they compete with the engine for cores.
        errors: describe the errors of every endpoint.
        needs_key: requests are to have an API key, which the page asks its reader for.
    """
    schemas = SamplingParams.model_json_schema()["properties"]
    filters = {name: schemas[name] for name in all_filters()}
    add_page(app, {"needsKey": needs_key, "mostTokens": limits.max_tokens, "filters": filters})
    add_facts(app, models, answers, errors)
    add_generate(app, models, limits, answers, heavy, errors)
    add_readings(app, models, limits, answers, heavy, errors)
