"""The window: what a model sees of a sequence that is longer than `block_size`."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """The end of a sequence, which the model sees.

    It holds the whole sequence while that fits, and then moves in steps of `chunk`, so that a cache has to be
    filled anew once in `chunk` tokens and not at every one. With chunk 1 it is always the last `size` tokens.

    Attributes:
        size: most tokens in it.
        chunk: 1 to `size`.
    """

    size: int
    chunk: int

    @classmethod
    def build(cls, block_size: int, slide_chunk: int | None = None) -> "Window":
        """Return the window of a model.

        Args:
            block_size: the model's.
            slide_chunk: at most the whole window; None: a quarter of it, so that three quarters stay in sight.
        """
        return cls(block_size, min(slide_chunk or max(1, block_size // 4), block_size))

    def start(self, length: int) -> int:
        """Return where it begins in a sequence of `length` tokens."""
        if length <= self.size:
            return 0
        steps = -(-(length - self.size) // self.chunk)
        return steps * self.chunk

    def of(self, sequence: Sequence[int]) -> Sequence[int]:
        """Return the tokens in it."""
        return sequence[self.start(len(sequence)) :]
