"""A short causal convolution, by which a position sees the few before it without attention."""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class History(Protocol):
    """What a convolution sees of a cache: the inputs of earlier positions."""

    def extend(self, x: Tensor, before: int) -> Tensor:
        """Store x (B, T, C); return it after the `before` positions ahead of it, (B, before + T, C), else 0."""
        ...


class ShortConv(nn.Module):
    """`x[t] + sum_j weight[:, 0, j] * x[t - j]`: a residual convolution of each channel, 0 before the start.

    It is a "Canon layer" (Allen-Zhu 2025, 2512.17351, section 4), here only before the feed-forward network.

    Args:
        width: channels C.
        taps: positions that are summed, the current one included.
    """

    def __init__(self, width: int, taps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, 1, taps, dtype=torch.float32))

    def forward(self, x: Tensor, mask: Tensor | None, cache: History | None) -> Tensor:
        """Map x (B, T, C) to (B, T, C); `mask` is that of attention."""
        length, before = x.size(1), self.weight.size(2) - 1
        if cache is not None:
            past = cache.extend(x, before)
        else:
            past = F.pad(x if mask is None else x * _kept(mask)[:, 0, -1, :, None], (0, 0, before, 0))
        own, *earlier = self.weight.permute(2, 1, 0).chunk(before + 1)
        y = x + x * own
        for distance, weight in enumerate(earlier, 1):
            y = y + past[:, before - distance : before - distance + length] * weight
        return y.to(x.dtype)


def _kept(mask: Tensor) -> Tensor:
    """Return which positions are no padding, from the last query of attention's mask."""
    return mask.isfinite() if mask.is_floating_point() else mask
