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
"""What the end of a server may take beside what it lets finish."""
BACKLOG = 2048
"""Connections that wait to be accepted; uvicorn's number."""


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens: a port that is taken is found before a model is loaded."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = f"cannot listen at {host}, port {port}: {error.strerror}"
        raise GPTError(f"{reason}; choose another --host or --port") from None
    # a connection inherits it; else the body of an answer waits 40 ms for the client to acknowledge its head
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return bound


class Server(uvicorn.Server):
    """Ends the process after a signal whatever hangs, such as a thread that reads a disk which does not answer."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Let what runs finish in its time; a second Ctrl-C leaves it none."""
        is_second = self.should_exit and sig == signal.SIGINT
        seconds = 0.0 if is_second else float(self.config.timeout_graceful_shutdown or 0)
        timer = threading.Timer(seconds + GRACE_SECONDS, _end, [sig])
        timer.daemon = True
        timer.start()
        super().handle_exit(sig, frame)


def _end(number: int) -> None:
    line = "warning: something hangs; the server ends all the same"
    threading.Thread(target=print_line, args=[line], daemon=True).start()  # whose reader may hang too
    time.sleep(0.1)
    os._exit(128 + number)


ACCESS_FORMAT = '%(asctime)s %(client_addr)s "%(request_line)s" %(status_code)s'
"""Of a line of the access log."""


def build_config(
    app: Any, limits: Limits, log_level: str = "error", access_log: bool = False, **options: Any
) -> uvicorn.Config:
    """Return how uvicorn serves an application of `create_app`; `options` are more of uvicorn's.

    With `access_log` each request is a line on standard output.
    At uvicorn's default `log_level` any client can cause warnings, as often as it likes.
    """
    config = uvicorn.Config(
        app,
        http="h11",
        h11_max_incomplete_event_size=HEADER_BYTES,
        limit_concurrency=limits.connections,
        ws="none",
        lifespan="off",  # the application has none, and its task would be cancelled with a traceback
        log_level=log_level,
        access_log=access_log,
        server_header=False,
        proxy_headers=False,  # whose address a request has is what its connection says
        **options,
    )
    if access_log:
        access = logging.getLogger("uvicorn.access")
        access.setLevel(logging.INFO)  # which each line has
        for handler in access.handlers:
            handler.setFormatter(AccessFormatter(ACCESS_FORMAT))
    logging.getLogger("uvicorn.error").addFilter(_is_no_cancellation)
    return config


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """Keep out of the log what the end of the server cancels: that is no error."""
    if record.exc_info is None:
        return "timeout graceful shutdown" not in str(record.msg)
    return not isinstance(record.exc_info[1], asyncio.CancelledError)
