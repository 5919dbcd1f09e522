"""Bounds on what rounding in float32 changes, whatever the order in which a processor adds."""

from torch import Tensor

SPACING = 2**-23
"""Relative to the number."""
LOGITS = 5e-5
"""Of a tiny model's logits: 2 blocks of 6 products of 32 to 128 terms are some 800 sums, each rounded by half a spacing
of about a unit."""


def of_sums(result: Tensor, terms: int) -> float:
    """Return how far a result may be off: one rounding of half a spacing for each term that was added on the way.

    Args:
        result: any shape; its largest number stands for the sums on the way.
        terms: of all sums that lead to one number.
    """
    return terms * SPACING / 2 * float(result.detach().abs().max())
