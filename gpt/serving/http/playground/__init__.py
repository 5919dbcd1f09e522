"""The page at `/`: a playground in front of the models, and the endpoints that it asks.

A view is a module of `gpt/web/src` that `playground.js` gives to `startShell`; what it asks of the server is a method
of `ServerSource` there, and an endpoint in a module here, which has a function that `add_playground` calls. Heavy work
goes to `Services.executor`.
"""

from fastapi import FastAPI

from gpt.config import SamplingParams
from gpt.config.filter_fields import all_filters
from gpt.serving.http.playground.generate import add_generate
from gpt.serving.http.playground.inspection import add_inspection
from gpt.serving.http.playground.page import add_model_info, add_page
from gpt.serving.http.playground.runs import Runs, add_runs
from gpt.serving.http.registry import Services


def add_playground(app: FastAPI, services: Services, *, needs_key: bool) -> None:
    """Add the page and its endpoints, but for those of training, to the server's application.

    Args:
        needs_key: requests are to have an API key, which the page asks its reader for.
    """
    schemas = SamplingParams.model_json_schema()["properties"]
    filters = {name: schemas[name] for name in all_filters()}
    add_page(app, {"needsKey": needs_key, "mostTokens": services.limits.max_tokens, "filters": filters})
    add_model_info(app, services)
    add_generate(app, services)
    add_inspection(app, services)
    add_runs(app, Runs(services.models.runs))
