"""What grows with a request's size is done beside the event loop, one request at a time.

A thread keeps the others out while it is inside one call, such as writing a long list as JSON: several such
threads would keep the event loop from most of its turns.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_FIELDS = 4096
"""Most fields of one object: each wrong one is an error, and a megabyte has room for 100,000."""
LONG = 1 << 14
"""Bytes, characters or tokens; what is shorter is done sooner than a thread begins to."""
T = TypeVar("T")


class Worker:
    """A thread that reads long requests and writes long answers."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="long-requests")

    async def run(self, size: int, function: Callable[..., T], *arguments: Any) -> T:
        """Return what a function returns, whose work grows with `size`; a short one is called at once."""
        if size < LONG:
            return function(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)

    def start(self, function: Callable[[], Any], then: Callable[[], Any]) -> None:
        """Call a function in the thread, and another one on the event loop afterwards."""
        loop = asyncio.get_running_loop()
        loop.run_in_executor(self._executor, function).add_done_callback(lambda _: then())


class HeldBodies:
    """Refuses long requests while those that are held until they are answered have too many bytes."""

    def __init__(self, app: ASGIApp, most_bytes: int) -> None:
        self._app, self._most, self._held = app, most_bytes, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        own = 0

        async def receive_counted() -> Message:
            nonlocal own
            message = await receive()
            size = len(message.get("body", b""))
            own += size
            self._held += size
            if own >= LONG and self._held > self._most:
                reason = f"the server is busy: it holds requests of {self._most:,} bytes"
                raise HTTPException(429, reason, {"Retry-After": "1"})
            return message

        try:
            await self._app(scope, receive_counted, send)
        finally:
            self._held -= own


class BodyRoute(APIRoute):
    """A route that reads a long body in a thread."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_request(request: Request) -> Response:
            return await handle(_Request(request.scope, request.receive))

        return handle_request


class _Request(Request):
    async def json(self) -> Any:
        body = await self.body()
        return await self.app.state.services.worker.run(len(body), _parse, body)


def _parse(body: bytes) -> Any:
    return json.loads(body, object_pairs_hook=_to_object)


def _to_object(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(fields) > MAX_FIELDS:
        found = f"an object of the body has {len(fields):,} fields"
        raise HTTPException(400, f"{found}, more than {MAX_FIELDS:,}")
    return dict(fields)
