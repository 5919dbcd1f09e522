"""A pseudorandom permutation that is computed element by element, so that it needs no memory."""

import numpy as np
from numpy.typing import NDArray

ROUNDS = 8
"""Rounds of the Feistel network, each with a key."""
Words = NDArray[np.uint64]


def permute(places: Words, size: int, keys: Words) -> Words:
    """Return the elements at some places of a pseudorandom permutation of 0, 1, ..., size - 1.

    A Feistel network (Luby and Rackoff 1988) permutes the numbers below a power of four; where it leads outside the
    range, it is applied again until it leads back (cycle walking, Black and Rogaway 2002): on average, at most four
    times.

    Args:
        places: (N,), each below `size`.
        keys: one for each round; they choose the permutation.
    """
    half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    elements = places
    outside = np.arange(len(places))
    while len(outside):
        elements = elements.copy()
        elements[outside] = _feistel(elements[outside], half, keys)
        outside = outside[elements[outside] >= size]
    return elements


def _feistel(words: Words, half: np.uint64, keys: Words) -> Words:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = words >> half, words & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right + key) & mask)
    return (left << half) | right


def _mixed(words: Words) -> Words:
    """Return well-mixed words: the finalizer of SplitMix64 (Steele, Lea and Flood 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
