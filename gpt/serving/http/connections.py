"""Connections: how many there are, and how slow a client may be with its request and with the answer.

uvicorn waits for a request for ever, and for ever for a client to read its answer; its limit of connections refuses
everybody once it is reached. Here a request has a deadline, so has a reader, and of too many connections the one that
has been idle longest is closed, as nginx does: whoever asks now is answered.
"""

import asyncio
import json
import logging
import math
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import h11
import uvicorn
from uvicorn.config import LOGGING_CONFIG
from uvicorn.protocols.http.h11_impl import H11Protocol

from gpt.serving.http.limits import HEADER_BYTES, Limits
from gpt.serving.http.protocol import APIError

STALL_BYTES = 16 << 10
"""Least bytes that a client reads of what waits for it in `Limits.stall_seconds`, unless it reads all of it."""
_ENCODED_CHUNKS = re.compile(
    rb"^transfer-encoding:[ \t]*(?!chunked)\w[^,\r\n]*,[^\r\n]*\bchunked[ \t]*\r?$", re.I | re.M
)
"""A body whose end is certain, in an encoding that the server does not know."""


def build_config(app: Any, limits: Limits, log_level: str = "error", **options: Any) -> uvicorn.Config:
    """Return how uvicorn serves an application of `create_app`; `options` are more of uvicorn's.

    At uvicorn's default `log_level` any client can cause warnings, as often as it likes.
    """
    return uvicorn.Config(
        app,
        http=partial(Connection, limits, {}, app.state.responses.metrics.count_answer),  # type: ignore[arg-type]  # called like the class that uvicorn expects
        h11_max_incomplete_event_size=HEADER_BYTES,
        ws="none",
        lifespan="off",  # the application has none, and its task would be cancelled with a traceback
        log_level=log_level,
        log_config=_log_config(),
        access_log=False,
        server_header=False,
        proxy_headers=False,  # whose address a request has is what its connection says
        **options,
    )


def _log_config() -> dict[str, Any]:
    """Return uvicorn's configuration of its log, but that an answer which the end of the server cancels is no error."""
    handlers: dict[str, Any] = LOGGING_CONFIG["handlers"]
    default = {**handlers["default"], "filters": ["cancelled"]}
    filters = {"cancelled": {"()": lambda: _is_no_cancellation}}
    return {**LOGGING_CONFIG, "filters": filters, "handlers": {**handlers, "default": default}}


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)


class Connection(H11Protocol):
    """One client's connection.

    Args:
        idle: connections that have no request under way, the one idle longest first; all share it.
        count: is given the status of an answer that does not come from the application.
    """

    def __init__(
        self, limits: Limits, idle: dict["Connection", None], count: Callable[[int], None], **arguments: Any
    ) -> None:
        super().__init__(**arguments)
        self._limits, self._idle, self._count = limits, idle, count
        self._deadline: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._unread = math.inf
        self._head = bytearray()

    def connection_made(self, transport: Any) -> None:
        """Accept a connection; where there are too many, close the one that has been idle longest, or else this one."""
        super().connection_made(transport)
        self._watch = self.loop.call_later(self._limits.stall_seconds, self._check_reader)
        if len(self.connections) <= self._limits.connections:
            self._note_progress()
        elif self._idle:
            next(iter(self._idle)).close_now()
            self._note_progress()
        else:
            self._refuse(503, "this server has as many connections as it accepts; try again later")

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_waiting()
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what the client sends."""
        if self.conn.their_state is h11.IDLE:
            self._head += data
        else:
            self._head.clear()
        super().data_received(data)
        self._note_progress()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._note_progress()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, in the shape of all errors, by the status of the error that is being handled."""
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, h11.ProtocolError) else 400
        # h11 says 501 of every encoding that is not "chunked", also where the end of the body is not certain
        self._refuse(400 if status == 501 and not _ENCODED_CHUNKS.search(self._head) else status, msg)

    def close_now(self) -> None:
        """Close the connection, whatever waits to be read."""
        self._stop_waiting()
        self.connections.discard(self)  # counts at once
        self.transport.abort()

    def _note_progress(self) -> None:
        """Start the clock of a request where none is under way, and stop it once all of one has come."""
        if self.transport.is_closing() or self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop_waiting()
        elif self._deadline is None:
            self._idle[self] = None
            self._deadline = self.loop.call_later(self._limits.request_seconds, self._be_late)

    def _stop_waiting(self) -> None:
        self._idle.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _be_late(self) -> None:
        """Refuse a request that has not come in time."""
        self._refuse(408, f"the request was not complete after {self._limits.request_seconds:g} s")

    def _refuse(self, status: int, message: str) -> None:
        """Answer with an error, unless an answer has begun, and close the connection."""
        self._stop_waiting()
        if self.cycle is not None:
            self.cycle.disconnected = True  # whatever the application would still send
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._count(status)
            body = json.dumps(APIError(status, message).body).encode()
            headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
            response = h11.Response(status_code=status, headers=list(headers.items()))
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _check_reader(self) -> None:
        """Close the connection of a client that reads too slowly, or not at all, what can no longer grow."""
        unread: float = self.transport.get_write_buffer_size()
        if not unread or not (self.flow.write_paused or self.transport.is_closing() or self.cycle.response_complete):
            unread = math.inf
        elif unread > self._unread - STALL_BYTES:
            self.close_now()
            return
        self._unread = unread
        self._watch = self.loop.call_later(self._limits.stall_seconds, self._check_reader)
