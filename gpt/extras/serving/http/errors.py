"""Every error that an endpoint raises, as the protocol's answer."""

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from gpt.extras.serving.http.protocol import PARAM_LENGTH, UNKNOWN_KEY, APIError, JSONText, log_failure
from gpt.system.errors import DataError, GenerationError, GPTError, InputError, quoted

OF_THE_REQUEST = (DataError, InputError, GenerationError)
"""Errors of texts and token ids, which a request has; others are the server's."""
UNPARSED = "There was an error parsing the body"
"""What FastAPI says of a body that is not even text."""
Path = tuple[str | int, ...]
"""Keys, and positions in lists, by which a value is found in a body."""


def add_error_handlers(app: FastAPI) -> None:
    """Answer every error of an app in this shape."""
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
    """Answer an error that no endpoint has caught."""
    return _api_error(request, APIError(400 if isinstance(error, OF_THE_REQUEST) else 500, str(error)))


def _bug(request: Request, error: Exception) -> JSONResponse:
    """Answer what nobody expected; its traceback goes to the log, as it would without this."""
    message = f"{request.method} {quoted(request.url.path, 100)}: the server has failed; its log says why"
    return APIError(500, message).response()


def _validation_error(request: Request, error: Exception) -> JSONResponse:
    """Report the first wrong field, where it is wrong; a value of several types has one reason per type."""
    assert isinstance(error, RequestValidationError)
    problems = [(_path(problem, error.body), str(problem["msg"])) for problem in error.errors()]
    first = problems[0][0][:1]
    if not first or isinstance(first[0], int):  # a position if no JSON could be read
        return _unreadable(request).response()
    of_field = [problem for problem in problems if problem[0][:1] == first]
    # of several types, the one that took most of the value was meant
    deepest = max((path for path, _ in of_field), key=len)
    reasons = dict.fromkeys(reason for path, reason in of_field if path == deepest)
    return APIError(400, f"{_written(deepest)}: {' or '.join(reasons)}", str(first[0])).response()


def _path(problem: dict[str, Any], body: Any) -> Path:
    """Return where a problem is in the body."""
    _, *steps = problem["loc"]
    if problem["type"] == UNKNOWN_KEY:
        steps.append(problem["ctx"]["key"])
    path: Path = tuple(steps[:1])
    value = body.get(steps[0]) if steps and isinstance(body, dict) else None
    for step in steps[1:]:
        if isinstance(value, list) and isinstance(step, int):
            path = (*path, step)
            value = value[step]
        elif isinstance(value, dict) and (step in value or problem["type"] in (UNKNOWN_KEY, "missing")):
            path = (*path, step)
            value = value.get(step)
        # else it is the name of a type that the value may have
    return path


def _written(path: Path) -> str:
    """Return a path as `messages[0].content`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{quoted(step, PARAM_LENGTH)}"
    return text.removeprefix(".")


def _unreadable(request: Request) -> APIError:
    """Return the error of a body that is no JSON."""
    coding = request.headers.get("content-encoding", "identity")
    if coding != "identity":
        return APIError(415, f"the body is sent as Content-Encoding: {coding}; send it without compression")
    return APIError(400, "the body is not a JSON object sent as Content-Type: application/json")


def _http_error(request: Request, error: Exception) -> JSONResponse:
    """Answer an unknown path, a wrong method, or a body that is too large or no text."""
    assert isinstance(error, HTTPException)
    if error.detail == UNPARSED:
        return _unreadable(request).response()
    message = f"{request.method} {quoted(request.url.path, 100)}: {error.detail}"
    return JSONText(APIError(error.status_code, message).body, error.status_code, error.headers)
