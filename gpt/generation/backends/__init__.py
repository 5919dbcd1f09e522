"""Backends: how next-token logits are computed, from the whole window each time, with a cache, or by the native engine.

A backend is given token sequences and returns the logits after each. Sequences grow between calls, usually by one
token, and a backend may reuse what it computed before. All backends agree up to rounding.
"""

from collections.abc import Sequence
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
