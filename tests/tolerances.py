"""Bounds on the effect of rounding, whatever the order in which a processor adds."""

import math

import torch

LOGITS = 5e-5
"""The bound for the logits of a tiny model: 2 blocks of 6 products of 32 to 128 terms have some 800
sums, each of about 1 and rounded by half a spacing of float32 there.
"""


def of_gradients(dtype: torch.dtype) -> float:
    """Return how far rounding moves the gradients of 2 blocks, relative to their norm.

    Independent errors add in quadrature: the bound is the unit roundoff times the root of the
    number of roundings (Higham and Mary 2019, 10.1137/18M1226312). There are 36 products: 6 in each
    block, once forward and twice backward. In bfloat16 both operands of each are rounded, in
    float32 up to 176 sums.
    """
    num_roundings = 36 * (176 if dtype == torch.float32 else 2)
    unit_roundoff = torch.finfo(dtype).eps / 2
    return unit_roundoff * math.sqrt(num_roundings)
