"""The socket of a server, and how uvicorn serves the application at it."""

import asyncio
import logging
import os
import signal
import socket
import threading
import time
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.logging import AccessFormatter

from gpt.extras.serving.http.limits import HEADER_BYTES, Limits
from gpt.system.errors import GPTError
from gpt.system.progress import print_line

GRACE_SECONDS = 5.0
"""How long the server may take to end after the time in which requests may finish."""
BACKLOG = 2048
"""Most connections that wait to be accepted; uvicorn's default."""
ACCESS_FORMAT = '%(asctime)s %(client_addr)s "%(request_line)s" %(status_code)s'
"""Format of a line of the access log."""


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens at a port, so that a port that is taken is found before a model
    is loaded.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = f"cannot listen at {host}, port {port}: {error.strerror}"
        raise GPTError(f"{reason}; choose another --host or --port") from None
    # Connections inherit this option. Without it, the body of an answer waits 40 ms until the
    # client has acknowledged the headers (Nagle's algorithm and delayed acknowledgements).
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return bound


class Server(uvicorn.Server):
    """A server that ends the process after a signal, even if a thread hangs that reads a disk."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Let running requests finish in the time that they have.

        After a second Ctrl-C they have none.
        """
        is_second = self.should_exit and sig == signal.SIGINT
        drain_seconds = 0.0 if is_second else float(self.config.timeout_graceful_shutdown or 0)
        timer = threading.Timer(drain_seconds + GRACE_SECONDS, _exit, [sig])
        timer.daemon = True
        timer.start()
        super().handle_exit(sig, frame)


def _exit(signal_number: int) -> None:
    """Exit without waiting for other threads, with the status that shells give to a process ended
    by a signal.
    """
    line = "warning: something hangs; the server ends all the same"
    # in a thread, since whatever reads standard error may hang too
    threading.Thread(target=print_line, args=[line], daemon=True).start()
    time.sleep(0.1)
    os._exit(128 + signal_number)


def build_config(
    app: Any, limits: Limits, log_level: str = "error", access_log: bool = False, **options: Any
) -> uvicorn.Config:
    """Return the configuration by which uvicorn serves an application of `create_app`.

    Args:
        log_level: at uvicorn's default, "info", any client can cause warnings, as often as it
            likes.
        access_log: print a line on standard output for each request.
        options: further options of `uvicorn.Config`.
    """
    config = uvicorn.Config(
        app,
        http="h11",
        h11_max_incomplete_event_size=HEADER_BYTES,
        limit_concurrency=limits.connections,
        ws="none",
        lifespan="off",  # the application has none, and its task would end with a traceback
        log_level=log_level,
        access_log=access_log,
        server_header=False,
        proxy_headers=False,  # clients could make up the address that X-Forwarded-For gives
        **options,
    )
    if access_log:
        access = logging.getLogger("uvicorn.access")
        access.setLevel(logging.INFO)  # the level of its lines, which `log_level` would leave out
        for handler in access.handlers:
            handler.setFormatter(AccessFormatter(ACCESS_FORMAT))
    logging.getLogger("uvicorn.error").addFilter(_is_not_cancellation)
    return config


def _is_not_cancellation(record: logging.LogRecord) -> bool:
    """Return whether to log a record: not if it says that the end of the server cancelled a
    request, no error.
    """
    if record.exc_info is None:
        return "timeout graceful shutdown" not in str(record.msg)
    return not isinstance(record.exc_info[1], asyncio.CancelledError)
