"""Answer every error that an endpoint raises in the protocol's shape."""

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from gpt.extras.serving.http.protocol import (
    MAX_PARAM_CHARACTERS,
    UNKNOWN_KEY,
    APIError,
    JSONText,
    log_failure,
)
from gpt.system.errors import DataError, GenerationError, GPTError, InputError, quoted

REQUEST_ERRORS = (DataError, InputError, GenerationError)
"""Errors of texts and token ids, which are in the request. For any other GPTError the server is to
blame.
"""
UNPARSED = "There was an error parsing the body"
"""FastAPI's message for a body that is not even text."""
Path = tuple[str | int, ...]
"""The keys of objects and positions in lists that lead to a value of a body."""


def add_error_handlers(app: FastAPI) -> None:
    """Answer every error of an app in the protocol's shape."""
    app.add_exception_handler(APIError, _api_error)
    app.add_exception_handler(GPTError, _user_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _bug)


def _api_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, APIError)
    log_failure(f"{request.method} {quoted(request.url.path, 100)}", error)
    return error.response()


def _user_error(request: Request, error: Exception) -> JSONResponse:
    """Answer an error of this package that no endpoint has caught."""
    status = 400 if isinstance(error, REQUEST_ERRORS) else 500
    return _api_error(request, APIError(status, str(error)))


def _bug(request: Request, error: Exception) -> JSONResponse:
    """Answer an error that nobody expected.

    Starlette raises it again, so that its traceback is logged.
    """
    where = f"{request.method} {quoted(request.url.path, 100)}"
    return APIError(500, f"{where}: the server has failed; its log says why").response()


def _validation_error(request: Request, error: Exception) -> JSONResponse:
    """Report the first wrong field.

    A field may have one of several types, such as a text or token ids. Pydantic reports the
    problems of each.
    """
    assert isinstance(error, RequestValidationError)
    problems = [(_path(problem, error.body), str(problem["msg"])) for problem in error.errors()]
    first_path, _ = problems[0]
    if not first_path or isinstance(first_path[0], int):
        # The body itself is wrong. Where JSON could not be parsed, the path is the position in the
        # text.
        return _unreadable(request).response()
    param = first_path[0]
    of_param = [(path, reason) for path, reason in problems if path[:1] == (param,)]
    # the type whose problem is deepest in the value fits most of it, and so is the one that was
    # meant
    deepest = max((path for path, _ in of_param), key=len)
    # without repeats
    reasons = dict.fromkeys(reason for path, reason in of_param if path == deepest)
    return APIError(400, f"{_format_path(deepest)}: {' or '.join(reasons)}", param).response()


def _path(problem: dict[str, Any], body: Any) -> Path:
    """Return the path of a problem in the body: pydantic's, without the names of types that it has
    in between.
    """
    _, *steps = problem["loc"]  # the first step is "body"
    if problem["type"] == UNKNOWN_KEY:
        steps.append(problem["ctx"]["key"])
    if not steps:
        return ()
    path: list[str | int] = [steps[0]]
    value = body.get(steps[0]) if isinstance(body, dict) else None
    may_be_absent = problem["type"] in (UNKNOWN_KEY, "missing")
    for step in steps[1:]:
        if isinstance(value, list) and isinstance(step, int):
            path.append(step)
            value = value[step]
        elif isinstance(value, dict) and (step in value or may_be_absent):
            path.append(step)
            value = value.get(step)
        # otherwise the step is the name of a type that the value may have, which is not in the body
    return tuple(path)


def _format_path(path: Path) -> str:
    """Return a path in the way of `messages[0].content`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{quoted(step, MAX_PARAM_CHARACTERS)}"
    return text.removeprefix(".")


def _unreadable(request: Request) -> APIError:
    """Return the error of a body that is no JSON object."""
    coding = request.headers.get("content-encoding", "identity")
    if coding != "identity":
        found = f"the body is sent as Content-Encoding: {coding}"
        return APIError(415, f"{found}; send it without compression")
    return APIError(400, "the body is not a JSON object sent as Content-Type: application/json")


def _http_error(request: Request, error: Exception) -> JSONResponse:
    """Answer an unknown path, a wrong method, or a body that is too large or no text."""
    assert isinstance(error, HTTPException)
    if error.detail == UNPARSED:
        return _unreadable(request).response()
    message = f"{request.method} {quoted(request.url.path, 100)}: {error.detail}"
    return JSONText(APIError(error.status_code, message).body, error.status_code, error.headers)
