"""`/api/training`: choose a text and a recipe, start, watch, stop, go on; for this machine's own browser only.

Who may start and stop a training is a person at this machine, from the page of this server. The server's guard has
refused pages of other sites and names that are not the server's. What starts a process asks for more: a loopback
address at both ends, no proxy between, and a token that only the page of this server could read.
"""

import asyncio
import hmac
import ipaddress
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, TypeVar
from urllib.parse import urlsplit

from fastapi import FastAPI, Query, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import HTTPConnection

from gpt.config.sections import RunName
from gpt.errors import GPTError
from gpt.serving.http.playground.corpora import TEXT_BYTES, Corpus
from gpt.serving.http.playground.launcher import BusyError
from gpt.serving.http.playground.recipes import Recipe
from gpt.serving.http.playground.trainings import Training, Trainings
from gpt.serving.http.protocol import APIError
from gpt.serving.http.responses import Services

START = "/api/training/start"
"""Takes a text, so its body may be larger than others'."""
BODY_BYTES = 2 * TEXT_BYTES
"""JSON escapes some characters of the text."""
TOKEN_HEADER = "X-Training-Token"
"""No form can send it, and a script of another site must first ask, which this server refuses."""
PROXY_HEADERS = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class StartRequest(_Body):
    """What to train, and on what: a corpus or a text."""

    recipe: Annotated[str, Field(max_length=100)]
    corpus: Annotated[str, Field(max_length=1000)] | None = None
    text: str | None = None
    name: Annotated[RunName, Field(max_length=64)] | None = None


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
    """What a training can be made of."""

    recipes: list[Recipe]
    corpora: list[Corpus]
    text_bytes: int


Body = TypeVar("Body", bound=BaseModel)


class Loopback:
    """Checks that requests come from this machine; `token` is what the page reads, and sends to change something."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(32)

    def check(self, request: HTTPConnection) -> None:
        """Raise APIError if a request comes from another machine, or was not meant for this one."""
        if request.client is None or not is_loopback(request.client.host):
            raise APIError(403, "training can only be seen and started from the machine that the server runs on")
        if any(name in request.headers for name in PROXY_HEADERS):
            raise APIError(403, "training cannot be seen or started through a proxy")
        host = request.headers.get("host", "")
        if not _names_loopback(f"//{host}"):
            raise APIError(403, "training can only be seen and started at http://127.0.0.1 or http://localhost")
        origin = request.headers.get("origin")
        if origin is not None and (not _names_loopback(origin) or urlsplit(origin).netloc.lower() != host.lower()):
            raise APIError(403, "training can only be seen and started from this server's own page")

    def check_change(self, request: HTTPConnection) -> None:
        """Raise APIError if a request that changes something does not come from the page, see `check`."""
        self.check(request)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise APIError(403, "send a JSON object as Content-Type: application/json")
        given = request.headers.get(TOKEN_HEADER, "")
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            raise APIError(403, f"the header {TOKEN_HEADER} is not the token that /api/training gives; reload the page")


def is_loopback(host: str) -> bool:
    """Whether an address is one of the loopback interface, IPv4 mapped into IPv6 included."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _names_loopback(url: str) -> bool:
    try:
        name = urlsplit(url).hostname or ""
    except ValueError:
        return False
    return name == "localhost" or is_loopback(name)


def add_training(app: FastAPI, trainings: Trainings | None, services: Services) -> None:
    """Add the endpoints of training, which the OpenAPI document leaves out; without `trainings` each says it is off."""
    loopback = Loopback()

    def allowed(request: Request) -> Trainings:
        loopback.check(request)
        if trainings is None:
            raise APIError(403, "this server was started with --no-training")
        return trainings

    def status(request: Request) -> Status:
        return Status(loopback.token, allowed(request).status())

    async def choices(
        request: Request,
        characters: Annotated[int, Query(ge=0, le=2**40)] = 0,
        vocabulary: Annotated[int, Query(ge=1, le=2**21)] | None = None,
        corpus: Annotated[str, Query(max_length=1000)] | None = None,
        measured: bool = True,
    ) -> Choices:
        """Return what can be trained, and how long it would take on so many characters, of so many distinct ones.

        These are counted where a corpus is named. Unless `measured`, it answers at once, with rougher times.
        """
        known = allowed(request)
        if corpus is not None:
            vocabulary = await asyncio.to_thread(known.corpora.vocabulary, corpus)
        describe = partial(known.recipes.describe, characters, vocabulary, measured=measured)
        recipes = await asyncio.get_running_loop().run_in_executor(services.executor, describe)  # measures once
        return Choices(recipes, await asyncio.to_thread(known.corpora.available), TEXT_BYTES)

    async def change(request: Request, kind: type[Body], act: Callable[[Trainings, Body], object]) -> Status:
        """Do what a body asks for, which is read only when the request may ask for it."""
        known = allowed(request)
        loopback.check_change(request)
        services.responses.check()
        try:
            body = kind.model_validate_json(await request.body())
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"])) or "the body"
            raise APIError(400, f"{place}: {first['msg']}"[:300], place[:100]) from None
        try:
            await asyncio.to_thread(act, known, body)
        except BusyError as error:
            raise APIError(409, str(error)) from None
        except GPTError as error:
            raise APIError(400, str(error)) from None
        return await asyncio.to_thread(status, request)

    async def start(request: Request) -> Status:
        return await change(request, StartRequest, _start)

    async def stop(request: Request) -> Status:
        return await change(request, NameRequest, lambda trainings, body: trainings.stop(body.name))

    async def resume(request: Request) -> Status:
        return await change(request, NameRequest, lambda trainings, body: trainings.resume(body.name))

    app.add_api_route("/api/training", status, include_in_schema=False)
    app.add_api_route("/api/training/choices", choices, include_in_schema=False)
    for path, endpoint in {START: start, "/api/training/stop": stop, "/api/training/resume": resume}.items():
        app.add_api_route(path, endpoint, methods=["POST"], include_in_schema=False)


def _start(trainings: Trainings, body: StartRequest) -> None:
    if (body.corpus is None) == (body.text is None):
        raise APIError(400, "give either corpus or text", "corpus")
    trainings.start(body.recipe, body.corpus, body.text, body.name)
