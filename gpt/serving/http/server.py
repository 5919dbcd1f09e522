"""A server that runs until a signal ends it: the first lets it drain, a later one stops it at once."""

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from gpt.errors import GPTError
from gpt.progress import Report
from gpt.serving.http.limits import HEADER_BYTES, Limits
from gpt.serving.http.protocol import APIError
from gpt.serving.http.responses import ResponseRegistry
from gpt.signals import WATCHED, Requests

CLOSE_SECONDS = 3
"""Seconds a client gets to read a finished response."""
BACKLOG = 2048
"""Connections that wait to be accepted; uvicorn's number."""
FILES = 512
"""Files and sockets that may be open beside the connections."""


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens: a port that is taken is found before a model is loaded.

    Two that do not listen may be bound to one port. Who connects before the server runs waits for it.

    Raises:
        GPTError: there is no such address here, or the port is taken.
    """
    try:
        family, _, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # asyncio turns off the delay of small packets, 40 ms, only where the protocol is said to be TCP
        with ExitStack() as stack:
            bound = stack.enter_context(socket.socket(family, socket.SOCK_STREAM, protocol))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.listen(BACKLOG)
            stack.pop_all()
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no name of a host"
        raise GPTError(f"cannot listen at {host}, port {port}: {reason}; choose another --host or --port") from None
    return bound


def allow_files(count: int) -> None:
    """Raise this process's limit of open files to this number, as far as the system permits."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def build_config(app: Any, limits: Limits, log_level: str = "error", **options: Any) -> uvicorn.Config:
    """Return how uvicorn serves an application of `create_app`; `options` are more of uvicorn's.

    At uvicorn's default `log_level` any client can cause warnings, as often as it likes.
    """
    config = uvicorn.Config(
        app,
        http=partial(Connection, limits.connections, app.state.responses.metrics.count_answer),  # type: ignore[arg-type]  # called like the class that uvicorn expects
        h11_max_incomplete_event_size=HEADER_BYTES,
        ws="none",
        lifespan="off",  # the application has none, and its task would be cancelled with a traceback
        log_level=log_level,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # whose address a request has is what its connection says
        **options,
    )
    logging.getLogger("uvicorn.error").addFilter(_is_no_cancellation)
    return config


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """Keep out of the log what the end of the server cancels: that is no error."""
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)


class Connection(H11Protocol):
    """One client's connection.

    One too many, and what is no HTTP, are answered in the shape of all errors, and counted. uvicorn's own limit counts
    requests only: connections without one would take all files that may be open.
    """

    def __init__(self, most: int, count: Callable[[int], None], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._most, self._count = most, count

    def connection_made(self, transport: Any) -> None:
        """Accept a connection, or refuse it where there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self._most:
            self._refuse(APIError(503, "this server has as many connections as it accepts; try again later"))

    def send_400_response(self, msg: str) -> None:
        """Answer the error that is being handled."""
        self._refuse(APIError(431 if getattr(sys.exception(), "error_status_hint", 400) == 431 else 400, msg))

    def _refuse(self, error: APIError) -> None:
        """Answer with an error, unless an answer has begun, and close the connection."""
        if self.cycle is not None:
            self.cycle.disconnected = True  # whatever the application would still send
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._count(error.status)
            answer = error.response()
            response = h11.Response(status_code=error.status, headers=[*answer.raw_headers, (b"connection", b"close")])
            for event in (response, h11.Data(data=bytes(answer.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class Server:
    """Runs an application of `create_app` at a socket.

    Args:
        drain_seconds: what running requests have to finish after a signal.
    """

    def __init__(self, app: Any, limits: Limits, drain_seconds: float, report: Report) -> None:
        self._responses: ResponseRegistry = app.state.responses
        self._drain_seconds, self._report = drain_seconds, report
        allow_files(limits.connections + FILES)
        self._server = uvicorn.Server(build_config(app, limits, timeout_graceful_shutdown=CLOSE_SECONDS))
        self._requests, self._received = Requests(), 0
        self._draining: asyncio.Task[None] | None = None

    async def run(self, bound: socket.socket, started: Callable[[], None]) -> int:
        """Serve until a signal, and return the exit code: 128 and the number of the signal.

        Args:
            bound: from `bind`.
            started: is called once requests are accepted, if they ever are.
        """
        watched = [number for number in WATCHED if signal.getsignal(number) is not signal.SIG_IGN]
        serving = asyncio.create_task(self._server.serve([bound]))
        while not self._server.started and not serving.done():
            await asyncio.sleep(0.01)
        loop = asyncio.get_running_loop()
        for number in watched:  # in place of uvicorn's, which would refuse connections
            with suppress(NotImplementedError):  # Windows, where uvicorn's are all there is
                loop.add_signal_handler(number, self._stop, number)
        if not serving.done():
            started()
        await serving
        return 128 + self._received if self._received else 0

    def _stop(self, number: int) -> None:
        count = self._requests.count()
        if count == 2:
            self._server.should_exit = self._server.force_exit = True
        if count != 1:
            return
        self._received = number
        active = len(self._responses.active)
        if active:
            self._report(
                f"{signal.Signals(number).name}: {self._drain_seconds:g} s for {active} running requests to finish; "
                "once more to stop at once"
            )
        self._draining = asyncio.get_running_loop().create_task(self._finish())

    async def _finish(self) -> None:
        await self._responses.drain(self._drain_seconds)
        self._server.should_exit = True
