"""Bounds on what rounding changes, whatever the order in which a processor adds."""

import math

import torch

LOGITS = 5e-5
"""Of a tiny model's logits: 2 blocks of 6 products of 32 to 128 terms are some 800 sums, each rounded by half a spacing
of about a unit."""


def of_gradients(dtype: torch.dtype) -> float:
    """Return how far rounding moves the gradients of 2 blocks, relative to their norm.

    Independent errors add in quadrature: the unit roundoff times the root of the roundings on the way (Higham and Mary
    2019, 10.1137/18M1226312). These are of 36 products, 6 in each block, once forward and twice backward: both operands
    to bfloat16, or in float32 up to 176 sums.
    """
    return torch.finfo(dtype).eps / 2 * math.sqrt(36 * (176 if dtype == torch.float32 else 2))
