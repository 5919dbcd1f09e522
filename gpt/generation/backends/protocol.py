"""What all backends do."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

Context = Sequence[int]
"""All tokens of a row so far, prompt included; at least one."""


class Backend(Protocol):
    """Gives next-token logits for a batch of rows."""

    def next_logits(self, contexts: Sequence[Context]) -> Tensor:
        """Logits (B, V) float32 of the token after each context."""
        ...

    def select(self, rows: Sequence[int]) -> None:
        """From now on row i is what row `rows[i]` was: to drop, reorder or multiply rows."""
        ...

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values held now."""
        ...
