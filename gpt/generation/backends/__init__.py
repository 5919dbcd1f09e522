"""Backends: how next-token logits are computed, from the whole window each time, with a cache, or by the native engine.

A backend is given token sequences and returns the logits after each. Sequences grow between calls, usually by one
token, and a backend may reuse what it computed before. All backends agree up to rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

TokenIds = Sequence[int]
"""All tokens of a sequence so far, including the prompt; at least one."""


class Backend(Protocol):
    """Computes next-token logits for a batch of sequences."""

    def next_logits(self, sequences: Sequence[TokenIds]) -> Tensor:
        """Return the logits (B, V) float32 of the token after each sequence."""
        ...

    def select(self, indices: Sequence[int]) -> None:
        """Make sequence `indices[i]` of the batch sequence i: to drop, reorder or duplicate sequences."""
        ...

    @property
    def cache_bytes(self) -> int:
        """Return the bytes of keys and values allocated now."""
        ...


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
        """Return that of a model; by default it moves by a quarter, so that three quarters stay in sight."""
        return cls(block_size, min(slide_chunk or max(1, block_size // 4), block_size))

    def start(self, length: int) -> int:
        """Return where it begins in a sequence of `length` tokens."""
        if length <= self.size:
            return 0
        steps = -(-(length - self.size) // self.chunk)
        return steps * self.chunk

    def of(self, sequence: Sequence[int]) -> Sequence[int]:
        return sequence[self.start(len(sequence)) :]
