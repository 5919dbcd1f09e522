"""`/api/training`: choose a text and a recipe, start, watch, stop, go on; for this machine's own browser only."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Annotated, TypeVar

from fastapi import FastAPI, Query, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpt.errors import GPTError
from gpt.serving.http.drain import Drain
from gpt.serving.http.errors import APIError
from gpt.serving.http.playground.corpora import TEXT_BYTES, Corpus
from gpt.serving.http.playground.launcher import BusyError
from gpt.serving.http.playground.loopback import Loopback
from gpt.serving.http.playground.recipes import UTILIZATION, Recipe
from gpt.serving.http.playground.trainings import Training, Trainings

START = "/api/training/start"
"""Takes a text, so its body may be larger than others'."""
BODY_BYTES = 2 * TEXT_BYTES
"""JSON escapes some characters of the text."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class StartRequest(_Body):
    """What to train, and on what: a corpus or a text."""

    recipe: Annotated[str, Field(max_length=100)]
    corpus: Annotated[str, Field(max_length=1000)] | None = None
    text: str | None = None
    name: Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] | None = None


class NameRequest(_Body):
    """A run."""

    name: Annotated[str, Field(max_length=255)]


@dataclass(frozen=True)
class Status:
    """What runs, and the token that changes need."""

    token: str
    training: Training | None


@dataclass(frozen=True)
class Choices:
    """What a training can be made of.

    Attributes:
        recipes: with the time that each would take, see `Recipe`.
        corpora: named ones and files.
        text_bytes: most of a text.
        utilization: fraction of this machine's matmul rate, at worst and at best, for estimates without a past run.
    """

    recipes: list[Recipe]
    corpora: list[Corpus]
    text_bytes: int
    utilization: tuple[float, float]


Body = TypeVar("Body", bound=BaseModel)


class TrainingEndpoints:
    """The endpoints of training.

    Args:
        trainings: None: each endpoint says that training is switched off.
        drain: the server's shutdown.
        heavy: runs other computations one at a time.
    """

    def __init__(self, trainings: Trainings | None, drain: Drain, heavy: Executor) -> None:
        self._trainings, self._drain, self._heavy = trainings, drain, heavy
        self._loopback = Loopback()

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to an application."""
        app.add_api_route("/api/training", self.status, include_in_schema=False)
        app.add_api_route("/api/training/choices", self.choices, include_in_schema=False)
        changes = {START: self.start, "/api/training/stop": self.stop, "/api/training/resume": self.resume}
        for path, handler in changes.items():
            app.add_api_route(path, handler, methods=["POST"], include_in_schema=False)

    def status(self, request: Request) -> Status:
        """Return what runs."""
        return Status(self._loopback.token, self._allowed(request).status())

    async def choices(
        self,
        request: Request,
        characters: Annotated[int, Query(ge=0, le=2**40)] = 0,
        vocabulary: Annotated[int, Query(ge=1, le=2**21)] | None = None,
        corpus: Annotated[str, Query(max_length=1000)] | None = None,
    ) -> Choices:
        """Return what can be trained, and how long it would take on so many characters, of so many distinct ones.

        These are counted where a corpus is named.
        """
        trainings = self._allowed(request)
        loop = asyncio.get_running_loop()
        if corpus is not None:
            vocabulary = await asyncio.to_thread(trainings.corpora.vocabulary, corpus)
        describe = partial(trainings.recipes.describe, characters, vocabulary)
        recipes = await loop.run_in_executor(self._heavy, describe)  # measures once
        corpora = await asyncio.to_thread(trainings.corpora.available)
        return Choices(recipes, corpora, TEXT_BYTES, UTILIZATION)

    async def start(self, request: Request) -> Status:
        """Start a training."""
        return await self._change(request, StartRequest, _start)

    async def stop(self, request: Request) -> Status:
        """Stop the training, which saves."""
        return await self._change(request, NameRequest, lambda trainings, body: trainings.stop(body.name))

    async def resume(self, request: Request) -> Status:
        """Continue a run."""
        return await self._change(request, NameRequest, lambda trainings, body: trainings.resume(body.name))

    def _allowed(self, request: Request) -> Trainings:
        self._loopback.check(request)
        if self._trainings is None:
            raise APIError(403, "this server was started with --no-training")
        return self._trainings

    async def _change(self, request: Request, kind: type[Body], act: Callable[[Trainings, Body], object]) -> Status:
        """Do what a body asks for, which is read only when the request may ask for it."""
        trainings = self._allowed(request)
        self._loopback.check_change(request)
        self._drain.check()
        try:
            body = kind.model_validate_json(await request.body())
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"])) or "the body"
            raise APIError(400, f"{place}: {first['msg']}"[:300], place[:100]) from None
        try:
            await asyncio.to_thread(act, trainings, body)
        except BusyError as error:
            raise APIError(409, str(error)) from None
        except GPTError as error:
            raise APIError(400, str(error)) from None
        return await asyncio.to_thread(self.status, request)


def _start(trainings: Trainings, body: StartRequest) -> None:
    if (body.corpus is None) == (body.text is None):
        raise APIError(400, "give either corpus or text", "corpus")
    trainings.start(body.recipe, body.corpus, body.text, body.name)
