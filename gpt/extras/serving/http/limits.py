"""Limits of what requests may use, and the guard that checks them before anything else does: host, origin and key.

A page of a stranger's site that a browser shows can send requests to a server on the same machine, also under a name of
its own that it lets resolve to 127.0.0.1 (DNS rebinding). Its requests name the stranger's host.
"""

import hmac
import ipaddress
import re
from collections.abc import Collection
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpt.extras.serving.http.protocol import APIError, CompletionRequest

HEADER_BYTES = 32 << 10
"""Most bytes of a request's headers, unless they arrive with their end in one piece."""
SAFE_METHODS = ("GET", "HEAD")
"""Read-only methods; browsers hide their responses from other origins."""
OPEN_PATHS = ("/", "/health")
"""Paths that need no API key: the page, which asks its reader for the key, and the health check."""

_HOST = re.compile(r"(?:(?P<name>[a-z0-9._-]+)|\[(?P<ipv6>[0-9a-f:.]+)\])(?::[0-9]{1,5})?")


@dataclass(frozen=True)
class Limits:
    """Upper limits; a request that exceeds one is refused, never trimmed.

    Attributes:
        body_bytes: bytes of a request's body.
        held_bytes: bytes of all bodies whose requests are under way.
        max_tokens: tokens of a completion.
        choices: completions of a request, over all its prompts.
        logprob_values: log-probabilities of an answer.
        values: tokens and log-probabilities of all answers that are under way: they are held until they are read.
        running: sequences computed at a time.
        waiting: sequences that wait besides.
        connections: open connections.
        view_tokens: tokens of a text to be inspected.
        view_bytes: bytes of a view of it.
        views: texts that are looked into or wait for it; one at a time is.
    """

    body_bytes: int = 1 << 20
    held_bytes: int = 32 << 20
    max_tokens: int = 4096
    choices: int = 64
    logprob_values: int = 1 << 18
    values: int = 1 << 22
    running: int = 64
    waiting: int = 256
    connections: int = 1024
    view_tokens: int = 1024
    view_bytes: int = 32 << 20
    views: int = 8

    def check(self, request: CompletionRequest, prompts: int) -> None:
        """Raise APIError if a request exceeds them."""
        tokens, choices = request.max_tokens or 0, prompts * (request.n or 1)
        _at_most("max_tokens", tokens, self.max_tokens)
        _at_most("n", choices, self.choices, " completions, of all prompts")
        self.check_logprobs(choices * tokens, request.logprobs)

    def check_logprobs(self, tokens: int, logprobs: int | None) -> None:
        """Raise APIError if so many tokens of an answer have too many log-probabilities."""
        if logprobs is not None:
            _at_most("logprobs", tokens * (1 + logprobs), self.logprob_values, " log-probabilities in all")


def _at_most(param: str, value: int, limit: int, what: str = "") -> None:
    if value > limit:
        raise APIError(400, f"{param}: {value}{what}, more than this server's limit of {limit}", param)


class KnownHosts:
    """Refuses requests under a name that is not this server's, preflights too, and marks all answers.

    Args:
        hosts: names beside localhost that the server is known by; an address is always accepted, since a stranger
            cannot let it resolve to something else.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = {host.lower() for host in hosts} | {"localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Content-Type-Options"] = "nosniff"
            await send(message)

        host = Headers(scope=scope).get("host", "")
        if self._is_ours(host):
            await self._app(scope, receive, send_marked)
        else:
            error = APIError(403, f"this server is not known as {host[:100]!r}; --allow-host adds a name")
            await error.response()(scope, receive, send_marked)

    def _is_ours(self, host: str) -> bool:
        match = _HOST.fullmatch(host.lower())
        if match is None:
            return False
        try:
            return match["name"] in self._hosts or bool(ipaddress.ip_address(match["name"] or match["ipv6"]))
        except ValueError:
            return False


class Guard:
    """Refuses requests from pages of other sites and without the key.

    Args:
        hosts: names whose pages may also come by https, since a proxy with TLS may stand before this server.
        api_key: None: none is asked for.
        most_bytes: of a body whose length is said.
        origins: sites whose pages may send requests, such as https://chat.lan; "*": all may.
    """

    def __init__(
        self, app: ASGIApp, hosts: Collection[str], api_key: str | None, most_bytes: int, origins: Collection[str]
    ) -> None:
        self._origins = frozenset(origins)
        self._app, self._key, self._most = app, api_key, most_bytes
        self._hosts = {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._problem(scope["method"], scope["path"], Headers(scope=scope))
        await (self._app if error is None else error.response())(scope, receive, send)

    def _problem(self, method: str, path: str, headers: Headers) -> APIError | None:
        """Return why a request is refused, or None."""
        origin = headers.get("origin")
        if not self._origins & {origin, "*"}:
            host = headers.get("host", "")
            if origin is not None and method not in SAFE_METHODS and not self._is_own(origin, host):
                return APIError(403, f"pages of {origin[:100]} are refused; --allow-origin admits a site")
            if path != "/" and headers.get("sec-fetch-site") in ("cross-site", "same-site"):
                return APIError(403, "requests from pages of other sites are refused; --allow-origin admits a site")
        if self._key is not None and path not in OPEN_PATHS:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._key.encode()):
                message = "the API key is missing or wrong; send it as Authorization: Bearer KEY"
                return APIError(401, message, code="invalid_api_key")
        if int(headers.get("content-length", 0)) > self._most:
            return APIError(413, f"the body has more than {self._most} bytes")
        return None

    def _is_own(self, origin: str, host: str) -> bool:
        """Return whether a page is this server's, whose name in the request is `host`."""
        is_behind_proxy = host.lower().partition(":")[0] in self._hosts
        return origin == f"http://{host}" or (is_behind_proxy and origin == f"https://{host}")
