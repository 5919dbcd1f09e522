"""`/api/runs`: the runs, their curves and their samples."""

from typing import Annotated

from fastapi import FastAPI, Query

from gpt.serving.http.information import Responses
from gpt.serving.http.playground.runs import RunDetails, RunList, Runs, Sample


def add_runs(app: FastAPI, runs: Runs, errors: Responses) -> None:
    """Add the endpoints of the runs to an application."""

    def list_runs() -> RunList:
        """List the runs, those that changed last first."""
        return RunList([runs.summary(name) for name in runs.names()])

    def get_run(name: str, after: Annotated[int, Query(ge=-1, lt=2**62)] = -1) -> RunDetails:
        """Return one run with its curves, of steps after `after`, thinned to about 1,000 points each."""
        return runs.details(name, after)

    def get_sample(name: str, step: int) -> Sample:
        """Return what the model of a run wrote at a step."""
        return runs.sample(name, step)

    app.add_api_route("/api/runs", list_runs, responses=errors)
    app.add_api_route("/api/runs/{name}", get_run, responses=errors)
    app.add_api_route("/api/runs/{name}/samples/{step}", get_sample, responses=errors)
