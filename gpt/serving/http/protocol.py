"""The OpenAI completions protocol: bodies of requests, what is documented of the answers, and errors."""

from difflib import get_close_matches
from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict
from starlette.exceptions import HTTPException

from gpt.config.sections import Seed, filter_fields

# a body can have a million wrong values: the first one is enough
Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True, min_length=1)]
Texts = Annotated[list[str], Field(fail_fast=True)]
Prompts = Annotated[list[Ids], Field(fail_fast=True, min_length=1, max_length=4096)]
Prompt = str | Annotated[Texts, Field(min_length=1)] | Ids | Prompts

ONLY_ZERO: JsonDict = {"minimum": 0, "maximum": 0}
"""Only for the OpenAPI document; the real check has a better message."""
Responses = dict[int | str, dict[str, Any]]
"""How endpoints describe what they answer, by status."""
RETRY_SECONDS = 1
"""Seconds that clients are told to wait if the server is busy; the official client does."""
MESSAGE_LENGTH = 500
"""Most characters of a message, which may quote the request."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(_Body):
    """Options of a stream."""

    include_usage: bool | None = Field(None, description="Send a last chunk with the token counts.")


class CompletionRequest(_Body, filter_fields(optional=True)):  # type: ignore[misc]
    """A request for completions. What is left out is as in the `sample` section of the model's configuration."""

    prompt: Prompt = Field(description="A text, or token ids, or several of either.")
    model: str | None = Field(None, description="One of /v1/models; left out: the server's first.")
    max_tokens: int | None = Field(None, ge=0, description="Tokens to generate; left out: 16.")
    n: int | None = Field(None, ge=1, description="Completions per prompt; number i has seed + i.")
    stream: bool | None = Field(None, description="Send the text as it is generated, by server-sent events.")
    stream_options: StreamOptions | None = None
    echo: bool | None = Field(None, description="Begin the text with the prompt.")
    logprobs: int | None = Field(None, ge=0, description="Log-probabilities (nats) of tokens and of this many others.")
    stop: str | Texts | None = Field(None, description="Stop before any of these texts.")
    seed: Seed | None = Field(None, description="Same seed, same text; left out: random.")
    temperature: float | None = Field(None, ge=0, le=2, description="0: always the most likely token.")
    repetition_penalty: float | None = Field(None, gt=0, description="Above 1: less likely what is there already.")
    overflow: Literal["slide", "stop"] | None = Field(None, description="When the window is full: slide it, or stop.")
    long_prompt: Literal["refuse", "crop"] | None = Field(None, description="A prompt longer than the window.")
    user: str | None = Field(None, description="Accepted and not used.")
    best_of: int | None = Field(
        None, description="Not supported beyond the value of n.", json_schema_extra={"minimum": 1}
    )
    suffix: str | None = Field(None, description="Not supported.", json_schema_extra={"maxLength": 0})
    logit_bias: dict[str, float] | None = Field(
        None, description="Not supported.", json_schema_extra={"maxProperties": 0}
    )
    presence_penalty: float | None = Field(
        None, description="Not supported; repetition_penalty is.", json_schema_extra=ONLY_ZERO
    )
    frequency_penalty: float | None = Field(
        None, description="Not supported; repetition_penalty is.", json_schema_extra=ONLY_ZERO
    )


class Logprobs(BaseModel):
    """Log-probabilities in nats; the first token of a prompt has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One completion."""

    index: int
    text: str
    seed: int
    logprobs: Logprobs | None
    finish_reason: Literal["length", "stop"] | None


class Usage(BaseModel):
    """Token counts of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(BaseModel):
    """The answer to a request, or one chunk of it."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None


class Model(BaseModel):
    """An available model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(BaseModel):
    """All of them."""

    object: Literal["list"]
    data: list[Model]


class Error(BaseModel):
    """What is wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """The answer in place of the one asked for."""

    error: Error


class APIError(Exception):
    """An error that is sent as the answer; `param` is the request's wrong field, `code` is for programs."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    @property
    def body(self) -> dict[str, Any]:
        """The body to send, as an answer or as an event of a stream."""
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(
            self.status, "invalid_request_error" if self.status < 500 else "server_error"
        )
        return {
            "error": {"message": self.message[:MESSAGE_LENGTH], "type": kind, "param": self.param, "code": self.code}
        }

    def response(self) -> JSONResponse:
        """Return the answer."""
        headers = {"Retry-After": str(RETRY_SECONDS)} if self.status in (429, 503) else {}
        if self.status == 401:
            headers = {"WWW-Authenticate": 'Bearer realm="gpt"'}
        return JSONResponse(self.body, self.status, headers)


def add_error_handlers(app: FastAPI) -> None:
    """Answer every error of an app in this shape."""
    app.add_exception_handler(APIError, _api_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _bug)


def _api_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, APIError)
    return error.response()


def _validation_error(request: Request, error: Exception) -> JSONResponse:
    """Report the first wrong field; a field of several types has one reason per type."""
    assert isinstance(error, RequestValidationError)
    problems = error.errors()
    place = problems[0]["loc"][1:2]
    if not place or isinstance(place[0], int):  # a position if no JSON could be read
        return APIError(400, "the body is not a JSON object sent as Content-Type: application/json").response()
    param = str(place[0])
    if problems[0]["type"] == "extra_forbidden":
        close = get_close_matches(param, CompletionRequest.model_fields, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        return APIError(400, f"{param}: there is no such field{hint}"[:300], param[:100]).response()
    reasons = dict.fromkeys(problem["msg"] for problem in problems if problem["loc"][1:2] == place)
    message = " or ".join(reasons).replace("Input should be", "expected")
    return APIError(400, f"{param}: {message}", param).response()


def _http_error(request: Request, error: Exception) -> JSONResponse:
    """Answer an unknown path, a wrong method or an oversized body."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail or HTTPStatus(error.status_code).phrase}"
    headers = dict(error.headers or {})
    if headers.get("Allow") == "GET":
        headers["Allow"] = "GET, HEAD"
    return JSONResponse(APIError(error.status_code, message).body, error.status_code, headers)


def _bug(request: Request, error: Exception) -> JSONResponse:
    """Answer an internal error, whose details are for the server's log only."""
    return APIError(500, "internal server error; see the server's log").response()
