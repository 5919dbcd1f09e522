"""Errors in the shape that clients of the OpenAI protocol read."""

from difflib import get_close_matches
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from gpt.serving.http.protocol import CompletionRequest

RETRY_SECONDS = 1
"""Seconds that clients are told to wait if the server is busy; the official client does."""

MESSAGE_LENGTH = 500
"""Most characters of a message, which may quote the request."""


class APIError(Exception):
    """An error that is sent as the answer.

    Args:
        status: HTTP status.
        message: description for a person.
        param: the request's wrong field.
        code: identifier for a program.
    """

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    @property
    def body(self) -> dict[str, Any]:
        """Return the body to send, as an answer or as an event of a stream."""
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(
            self.status, "invalid_request_error" if self.status < 500 else "server_error"
        )
        return {
            "error": {"message": self.message[:MESSAGE_LENGTH], "type": kind, "param": self.param, "code": self.code}
        }

    @property
    def headers(self) -> dict[str, str]:
        """Return the answer's additional headers."""
        if self.status == 401:
            return {"WWW-Authenticate": 'Bearer realm="gpt"'}
        return {"Retry-After": str(RETRY_SECONDS)} if self.status in (429, 503) else {}

    def response(self) -> JSONResponse:
        """Return the answer."""
        return JSONResponse(self.body, self.status, self.headers)


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
