"""Measure the speed of generation, for `scripts/sample.py --stats`."""

import time
from collections.abc import Callable, Iterable, Iterator

from gpt.generation import TextChunk


class Meter:
    """Measures the time to the first token of a batch, and tokens per second after its first step.

    Args:
        sequences: number of sequences in the batch; the first step gives one token of each.
        clock: returns the time in seconds.
    """

    def __init__(self, sequences: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._sequences, self._clock = sequences, clock
        self._start = self._first = self._last = clock()
        self._tokens = 0
        self.cache_bytes = 0

    def watch(self, pieces: Iterable[TextChunk]) -> Iterator[TextChunk]:
        """Yield the same pieces, and record their times."""
        for piece in pieces:
            self._last = self._clock()
            if self._tokens == 0:
                self._first = self._last
            self._tokens += piece.token is not None
            yield piece

    def __str__(self) -> str:
        later = self._tokens - self._sequences
        rate = later / max(self._last - self._first, 1e-9) if later > 0 else 0.0
        return (
            f"{self._tokens} tokens; first after {(self._first - self._start) * 1000:.1f} ms, "
            f"then {rate:,.0f} tokens/s; cache {self.cache_bytes:,} bytes"
        )
