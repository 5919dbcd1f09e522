"""The token ids of a split, wherever they are."""

from typing import Any

from numpy.typing import NDArray

Tokens = NDArray[Any]
"""Token ids of a split, (N,), in memory or memory-mapped."""
