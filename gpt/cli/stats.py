"""How fast text came: `scripts/sample.py --stats`."""

import time
from collections.abc import Iterator

from gpt.generation import Piece


class Meter:
    """Time to the first token and tokens per second after it."""

    def __init__(self) -> None:
        self._start = self._first = self._last = time.perf_counter()
        self._tokens = self._first_tokens = 0
        self.cache_bytes = 0

    def watch(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """Pass pieces on and note when they came."""
        for piece in pieces:
            self._last = time.perf_counter()
            if self._tokens == 0:
                self._first = self._last
            self._tokens += piece.drawn is not None
            yield piece

    def __str__(self) -> str:
        rate = (self._tokens - 1) / max(self._last - self._first, 1e-9) if self._tokens > 1 else 0.0
        return (
            f"{self._tokens} tokens; first after {(self._first - self._start) * 1000:.1f} ms, "
            f"then {rate:,.0f} tokens/s; cache {self.cache_bytes:,} bytes"
        )
