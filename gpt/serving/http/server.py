"""A server that runs until a signal ends it: the first lets it drain, a later one stops it at once."""

import asyncio
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import uvicorn

from gpt.errors import GPTError
from gpt.progress import Report
from gpt.serving.http.connections import build_config
from gpt.serving.http.limits import Limits
from gpt.serving.http.registry import ResponseRegistry
from gpt.signals import WATCHED, Requests

CLOSE_SECONDS = 3
"""Seconds a client gets to read a finished response."""
SEND_BYTES = 128 << 10
"""Socket send buffer per client; the Linux default is megabytes."""
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
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)  # also of connections that it accepts
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
