"""Read and write long bodies beside the event loop, one at a time.

A Python thread holds the interpreter's lock while it is inside one call, such as writing a long
list as JSON. Several such threads would keep the event loop, which serves all other requests, from
running: so there is one.
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
"""Most fields of one object. Each unknown field costs an error, and a megabyte has room for 100,000
of them.
"""
LONG = 1 << 14
"""Bytes, characters or tokens from which work is given to the thread. Shorter work takes less time
than the handover.
"""
T = TypeVar("T")


class Worker:
    """A thread that reads long requests and writes long answers."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="long-requests")

    async def run(self, size: int, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function whose work grows with `size`, and return its result.

        It is called in the thread if the size is `LONG` or more, otherwise at once on the event
        loop.
        """
        if size < LONG:
            return function(*arguments)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, function, *arguments)

    def start(self, function: Callable[[], Any], then: Callable[[], Any]) -> None:
        """Call `function` in the thread, and `then` on the event loop when it has returned."""
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._executor, function)
        future.add_done_callback(lambda _: then())


class HeldBodies:
    """Middleware that bounds the bytes of all request bodies in memory.

    A body stays in memory until its request is answered. While all bodies together have more than
    `max_bytes`, those of `LONG` bytes and more are refused; short ones are always accepted.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        own = 0  # bytes of this request's body so far

        async def receive_counted() -> Message:
            nonlocal own
            message = await receive()
            size = len(message.get("body", b""))
            own += size
            self._held += size
            if own >= LONG and self._held > self._max_bytes:
                reason = f"the server is busy: it holds requests of {self._max_bytes:,} bytes"
                raise HTTPException(429, reason, {"Retry-After": "1"})
            return message

        try:
            await self._app(scope, receive_counted, send)
        finally:
            self._held -= own


class BodyRoute(APIRoute):
    """A route whose long bodies are parsed by the application's `Worker`, not on the event loop."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_request(request: Request) -> Response:
            return await handle(_Request(request.scope, request.receive))

        return handle_request


class _Request(Request):
    async def json(self) -> Any:
        body = await self.body()
        worker: Worker = self.app.state.services.worker
        return await worker.run(len(body), _parse, body)


def _parse(body: bytes) -> Any:
    return json.loads(body, object_pairs_hook=_to_object)


def _to_object(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of a JSON object as a dict, or refuse an object with too many."""
    if len(fields) > MAX_FIELDS:
        found = f"an object of the body has {len(fields):,} fields"
        raise HTTPException(400, f"{found}, more than {MAX_FIELDS:,}")
    return dict(fields)
