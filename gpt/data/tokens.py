"""The token ids of a split: an array, in memory or memory-mapped."""

import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

KEEP_RESIDENT = 16 << 20
"""Size in bytes up to which a token file stays in memory.

The pages of a larger file are released after each read.
"""
PIECE = 1 << 20
"""Number of tokens that are read at a time where a whole split is read."""

IGNORE = -100
"""Targets with this value, as padding, are excluded from the loss and from its mean."""

Tokens = NDArray[np.integer[Any]]
"""Token ids, (N,)."""


def in_pieces(tokens: Tokens) -> Iterator[Tokens]:
    """Yield the tokens in order, in arrays of at most `PIECE`, and release the pages read."""
    for begin in range(0, len(tokens), PIECE):
        yield tokens[begin : begin + PIECE]
        release_pages(tokens)


def release_pages(tokens: Tokens) -> None:
    """Release the pages that reading a large memory-mapped file has brought into memory.

    They would otherwise count as memory of the process. Arrays in memory are left as they are.
    """
    mapping = getattr(tokens, "_mmap", None)
    if mapping is not None and len(mapping) > KEEP_RESIDENT and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)
