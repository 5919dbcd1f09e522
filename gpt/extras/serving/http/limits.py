"""Limits of what requests may use, and middleware that checks their host, origin and key before
anything else.

A browser on this machine may show a page of a foreign site, which can send requests to this server.
They name the foreign site as their origin. If that site lets its own name resolve to 127.0.0.1 (DNS
rebinding), they name it as their host.
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
"""Most bytes of a request's headers that h11 buffers while it waits for their end."""
SAFE_METHODS = ("GET", "HEAD")
"""Read-only methods; browsers hide their responses from other origins."""
OPEN_PATHS = ("/", "/health")
"""Paths that need no API key: the page, which asks its reader for the key, and the health check."""

_HOST = re.compile(
    r"""
    (?: (?P<name> [a-z0-9._-]+ )         # a name or an IPv4 address
      | \[ (?P<ipv6> [0-9a-f:.]+ ) \] )
    (?: : [0-9]{1,5} )?                  # the port
    """,
    re.VERBOSE,
)
"""The header Host, in lower case."""


@dataclass(frozen=True)
class Limits:
    """Upper limits; a request that exceeds one is refused, never trimmed.

    Attributes:
        body_bytes: bytes of a request's body.
        held_bytes: bytes of the bodies of all requests that are under way.
        max_tokens: tokens of a completion.
        choices: completions of a request, those of all its prompts together.
        logprob_values: log-probabilities of an answer.
        values: tokens and log-probabilities of all answers that are under way; an answer that its
            client does not read stays in memory.
        running: sequences computed at a time.
        waiting: sequences that wait for their turn.
        connections: open connections.
        view_tokens: tokens of a text that a view of the playground shows.
        view_bytes: bytes of a view.
        views: requests for views that are under way; one is computed at a time, the others wait.
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

    def check(self, request: CompletionRequest, num_prompts: int) -> None:
        """Raise APIError if a request exceeds a limit."""
        tokens = request.max_tokens or 0
        choices = num_prompts * (request.n or 1)
        _check_at_most("max_tokens", tokens, self.max_tokens)
        _check_at_most("n", choices, self.choices, " completions, of all prompts")
        self.check_logprobs(choices * tokens, request.logprobs)

    def check_logprobs(self, tokens: int, logprobs: int | None) -> None:
        """Raise APIError if an answer of so many tokens has too many log-probabilities.

        Each token has its own and those of the `logprobs` most likely tokens.
        """
        if logprobs is None:
            return
        values = tokens * (1 + logprobs)
        _check_at_most("logprobs", values, self.logprob_values, " log-probabilities in all")


def _check_at_most(param: str, value: int, limit: int, unit: str = "") -> None:
    if value > limit:
        message = f"{param}: {value}{unit}, more than this server's limit of {limit}"
        raise APIError(400, message, param)


class KnownHosts:
    """Middleware that refuses requests, preflights too, whose host is not a name of this server.

    A host that is an IP address is always accepted, since a foreign site cannot let it resolve to
    another one. All answers forbid browsers to guess another type of content than they name.

    Args:
        hosts: names of this server beside localhost.
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
            error = APIError(
                403, f"this server is not known as {host[:100]!r}; --allow-host adds a name"
            )
            await error.response()(scope, receive, send_marked)

    def _is_ours(self, host: str) -> bool:
        match = _HOST.fullmatch(host.lower())
        if match is None:
            return False
        if match["name"] in self._hosts:
            return True
        try:
            ipaddress.ip_address(match["name"] or match["ipv6"])
        except ValueError:
            return False
        return True


class Guard:
    """Middleware that refuses requests of pages of other sites, and requests without the key.

    Args:
        hosts: names of this server at which a proxy may serve it by https.
        api_key: the key that requests must have; None if they need none.
        max_bytes: most bytes of a body, as the header Content-Length gives them.
        origins: sites whose pages may send requests, such as https://chat.lan; "*" admits all.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Collection[str],
        api_key: str | None,
        max_bytes: int,
        origins: Collection[str],
    ) -> None:
        self._app = app
        self._hosts = {host.lower() for host in hosts}
        self._key = api_key
        self._max_bytes = max_bytes
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._problem(scope["method"], scope["path"], Headers(scope=scope))
        answer = self._app if error is None else error.response()
        await answer(scope, receive, send)

    def _problem(self, method: str, path: str, headers: Headers) -> APIError | None:
        """Return why a request is refused, or None."""
        problem = self._origin_problem(method, path, headers)
        if problem is not None:
            return problem
        if path not in OPEN_PATHS and not self._has_key(headers):
            message = "the API key is missing or wrong; send it as Authorization: Bearer KEY"
            return APIError(401, message, code="invalid_api_key")
        if int(headers.get("content-length", 0)) > self._max_bytes:
            return APIError(413, f"the body has more than {self._max_bytes} bytes")
        return None

    def _origin_problem(self, method: str, path: str, headers: Headers) -> APIError | None:
        """Return why the page that sent a request may not send it, or None."""
        origin = headers.get("origin")
        if origin in self._origins or "*" in self._origins:
            return None
        is_safe = method in SAFE_METHODS
        if origin is not None and not is_safe and not self._is_own(origin, headers.get("host", "")):
            return APIError(
                403, f"pages of {origin[:100]} are refused; --allow-origin admits a site"
            )
        # Browsers set this header, also where they send no origin. Any site may link to the page at
        # "/".
        is_of_other_site = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if is_of_other_site and path != "/":
            found = "requests from pages of other sites are refused"
            return APIError(403, f"{found}; --allow-origin admits a site")
        return None

    def _is_own(self, origin: str, host: str) -> bool:
        """Return whether the page of an origin is this server's, which the request calls `host`."""
        if origin == f"http://{host}":
            return True
        name, _, _ = host.lower().partition(":")
        may_be_behind_proxy = name in self._hosts
        return may_be_behind_proxy and origin == f"https://{host}"

    def _has_key(self, headers: Headers) -> bool:
        """Return whether a request has the key, or needs none."""
        if self._key is None:
            return True
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return False
        # compared in constant time, or an attacker could find the key byte by byte from how long
        # answers take
        return hmac.compare_digest(given.strip().encode(), self._key.encode())
