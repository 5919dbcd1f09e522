"""Limits of what requests may use, and the guard that checks them before anything else does: origin, key and size.

A page of a stranger's site that a browser shows can send requests to a server on the same machine, also under a name of
its own that it lets resolve to 127.0.0.1 (DNS rebinding). Its requests name the stranger's host.
"""

import hmac
import ipaddress
import re
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpt.serving.http.protocol import APIError, CompletionRequest

HEADER_BYTES = 32 << 10
"""Most bytes of the headers of a request."""
SAFE_METHODS = ("GET", "HEAD")
"""Read-only methods; browsers hide their responses from other origins."""
OPEN_PATHS = ("/", "/health")
"""Paths that need no API key: the page, which asks its reader for the key, and the health check."""
HEADERS = [(b"x-content-type-options", b"nosniff"), (b"x-frame-options", b"DENY")]
"""Of every answer: what it is said to be is what it is, and it is shown in no other page."""
_HOST = re.compile(r"(?:([\w.~%!$&'()*+,;=-]+)|\[([\da-f:.]+)\])(?::\d*)?", re.ASCII | re.IGNORECASE)
"""A name or an address, with or without a port (RFC 3986, 3.2.2)."""
_URL = re.compile(rb"http://([^/]*)(/.*)?", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Limits:
    """Upper limits; a request that exceeds one is refused, never trimmed.

    Attributes:
        body_bytes: bytes of a request's body.
        max_tokens: tokens of a completion.
        choices: completions of a request, over all its prompts.
        logprobs: alternatives per token.
        logprob_values: log-probabilities of an answer.
        values: tokens and log-probabilities of all answers that are under way: they are held until they are read.
        stops: stop strings.
        stop_characters: characters of each stop string.
        running: sequences computed at a time.
        waiting: sequences that wait besides.
        connections: open connections.
        view_tokens: tokens of a text to be inspected.
        view_bytes: bytes of a view of it.
        views: texts that are looked into or wait for it; one at a time is.
    """

    body_bytes: int = 1 << 20
    max_tokens: int = 4096
    choices: int = 64
    logprobs: int = 20
    logprob_values: int = 1 << 18
    values: int = 1 << 22
    stops: int = 16
    stop_characters: int = 256
    running: int = 64
    waiting: int = 256
    connections: int = 1024
    view_tokens: int = 1024
    view_bytes: int = 32 << 20
    views: int = 8

    def check(self, request: CompletionRequest, prompts: int) -> None:
        """Raise APIError if a request exceeds them, or asks for something that this server does not support."""
        _at_most("max_tokens", request.max_tokens or 0, self.max_tokens)
        choices = prompts * (request.n or 1)
        _at_most("n", choices, self.choices, "completions, of all prompts")
        _at_most("logprobs", request.logprobs or 0, self.logprobs)
        if request.logprobs is not None:
            values = choices * (request.max_tokens or 0) * (1 + request.logprobs)
            _at_most("logprobs", values, self.logprob_values, "log-probabilities in all")
        stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
        _at_most("stop", len(stops), self.stops, "stop strings")
        _at_most("stop", max(map(len, stops), default=0), self.stop_characters, "characters of a stop string")
        if request.stream_options is not None and not request.stream:
            raise APIError(400, "stream_options: it has an effect only with stream", "stream_options")
        if request.best_of is not None and request.best_of != (request.n or 1):
            raise APIError(400, "best_of: other values than that of n are not supported", "best_of")
        for name in ("suffix", "logit_bias", "presence_penalty", "frequency_penalty"):
            if getattr(request, name):
                raise APIError(400, f"{name}: it is not supported; leave it out", name)


def _at_most(param: str, value: int, limit: int, what: str = "") -> None:
    if value > limit:
        raise APIError(400, f"{param}: {value} {what}".rstrip() + f", more than this server's limit of {limit}", param)


class Guard:
    """Refuses requests from pages of other sites, without the key, with oversized headers or bodies, or of two lengths.

    It answers HEAD as GET; the server sends no body then. Starlette's own limit of a body answers in plain text, and
    its check of the host takes no IPv6 address.

    Args:
        hosts: names beside localhost that the server is known by; an address is always accepted, since a stranger
            cannot let it resolve to something else.
        api_key: None: none is asked for.
    """

    def __init__(self, app: ASGIApp, body_bytes: int, hosts: Collection[str], api_key: str | None) -> None:
        self._app, self._body_bytes, self._key = app, body_bytes, api_key
        self._hosts = {host.lower() for host in hosts} | {"localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope = _as_to_an_origin(scope)
        headers = Headers(scope=scope)
        send = _with_headers(send)
        wrong = _framing_problem(scope, headers)
        error = wrong or self._problem(scope["method"], scope["path"], headers)
        if error is not None:
            response = error.response()
            # where the next request begins is not certain, or too far away
            if wrong is not None or error.status == 413:
                response.headers["Connection"] = "close"
            await response(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, self._limited(receive), send)

    def _problem(self, method: str, path: str, headers: Headers) -> APIError | None:
        """Return why a request is refused, or None."""
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._body_bytes:
            return APIError(413, _too_large(self._body_bytes))
        host = headers.get("host", "")
        if not self._is_ours(host):
            return APIError(403, f"this server is not known as {host[:100]!r}; --allow-host adds a name")
        origin = headers.get("origin")
        if origin is not None and method not in SAFE_METHODS and _host_of(origin) != host.lower():
            return APIError(403, f"requests from pages of {origin[:100]} are refused")
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and (
            path != "/" or headers.get("sec-fetch-mode") != "navigate"
        ):
            return APIError(403, "requests from pages of other sites are refused")
        if self._key is not None and path not in OPEN_PATHS:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._key.encode()):
                message = "the API key is missing or wrong; send it as Authorization: Bearer KEY"
                return APIError(401, message, code="invalid_api_key")
        return None

    def _limited(self, receive: Receive) -> Receive:
        """Return `receive`, which raises HTTPException once a body without a Content-Length is too large."""
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._body_bytes:
                raise HTTPException(413, _too_large(self._body_bytes), {"Connection": "close"})
            return message

        return limited

    def _is_ours(self, host: str) -> bool:
        # what has no valid one was refused before
        valid = _HOST.fullmatch(host)
        assert valid is not None
        name = (valid[1] or valid[2]).lower()
        try:
            return name in self._hosts or bool(ipaddress.ip_address(name))
        except ValueError:
            return False


def _with_headers(send: Send) -> Send:
    async def send_with(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *HEADERS]}
        await send(message)

    return send_with


def _as_to_an_origin(scope: Scope) -> Scope:
    """Return a request for a whole URL, as a proxy is asked, as one for its path at its host (RFC 9112, 3.2.2)."""
    url = _URL.fullmatch(scope["raw_path"])
    if url is None:
        return scope
    path = url[2] or b"/"
    headers = [(b"host", url[1]), *((name, value) for name, value in scope["headers"] if name != b"host")]
    return {**scope, "raw_path": path, "path": unquote(path.decode("ascii")), "headers": headers}


def _framing_problem(scope: Scope, headers: Headers) -> APIError | None:
    """Return why it is not certain what a request is (RFC 9112, 2.3, 3.2 and 6), why it is too long, or None."""
    if not scope["http_version"].startswith("1."):
        return APIError(505, "this server speaks HTTP/1.1")
    if "transfer-encoding" in headers and ("content-length" in headers or scope["http_version"] == "1.0"):
        return APIError(400, "Transfer-Encoding excludes Content-Length and HTTP/1.0")
    target, query = scope["raw_path"], scope["query_string"]
    if b"#" in target + query or not (target.startswith(b"/") or (scope["method"], target) == ("OPTIONS", b"*")):
        return APIError(400, "the target is neither a path nor a URL that begins with http://")
    if _HOST.fullmatch(headers.get("host", "")) is None:
        return APIError(400, "the Host is neither a name nor an address, with or without a port")
    size = len(scope["method"]) + len(target) + len(query) + sum(len(a) + len(b) + 4 for a, b in headers.raw)
    if size > HEADER_BYTES:  # what comes in one piece is not limited below
        return APIError(431, f"the headers have more than the {HEADER_BYTES} bytes that this server accepts")
    return None


def _too_large(most: int) -> str:
    return f"the body has more than the {most} bytes that this server accepts"


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
