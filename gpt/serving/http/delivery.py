"""From the engine's thread to the event loop."""

import asyncio
from collections.abc import Callable
from threading import Lock

from gpt.generation import Piece
from gpt.serving.request import OnPieces

Receiver = Callable[[list[Piece]], None]
"""Takes pieces, on the event loop."""


class Delivery:
    """Carries pieces to the event loop, which is woken once for all that came since it was woken last.

    Args:
        loop: that the receivers run on.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._lock = loop, Lock()
        self._waiting: list[tuple[Receiver, list[Piece]]] = []

    def to(self, receiver: Receiver) -> OnPieces:
        """Return what the engine is to call for `receiver` to be called on the event loop."""
        return lambda pieces: self._put(receiver, pieces)

    def _put(self, receiver: Receiver, pieces: list[Piece]) -> None:
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
