"""Deliver pieces from the engine's thread to the event loop."""

import asyncio
from collections.abc import Callable
from threading import Lock

from gpt.generation import TextChunk
from gpt.generation.request import OnChunks

Receiver = Callable[[list[TextChunk]], None]
"""Receives pieces, on the event loop."""


class Delivery:
    """Carries pieces to the event loop, and wakes it once for all that have accumulated.

    Args:
        loop: the receivers' event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._lock = loop, Lock()
        self._waiting: list[tuple[Receiver, list[TextChunk]]] = []

    def to(self, receiver: Receiver) -> OnChunks:
        """Return a callback for the engine that makes the event loop call `receiver`."""
        return lambda pieces: self._put(receiver, pieces)

    def _put(self, receiver: Receiver, pieces: list[TextChunk]) -> None:
        with self._lock:
            self._waiting.append((receiver, pieces))
            if len(self._waiting) > 1:
                return
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for receiver, pieces in waiting:
            receiver(pieces)
