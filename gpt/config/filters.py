"""Sampling filters, which drop unlikely tokens before one is sampled.

`FILTERS` has them in the order in which they apply. The command line, the server and its page have
an option for each. This module does not import torch, so that options are listed quickly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import Field

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Filter:
    """A filter and its parameter.

    `apply` maps logits (..., V) and the parameter's value to logits that are -inf for the dropped
    tokens. `field` is the parameter's field of pydantic, whose default keeps all tokens.
    """

    apply: Callable[[Tensor, Any], Tensor]
    field: Any

    @property
    def off(self) -> int | float:
        """Return the value that keeps all tokens."""
        return self.field.default

    @property
    def help(self) -> str:
        """Return the field's description as a phrase, with a small first letter and no period."""
        text = str(self.field.description or "")
        return text[:1].lower() + text[1:].removesuffix(".")


def top_k_filter(logits: Tensor, k: int) -> Tensor:
    """Keep the k largest logits (Fan et al. 2018, 1805.04833); k >= V keeps all.

    All logits that equal the smallest kept one are kept, so that more than k may stay.
    """
    if k >= logits.size(-1):
        return logits
    smallest_kept = logits.topk(k, dim=-1).values[..., -1:]
    return logits.masked_fill(logits < smallest_kept, -math.inf)


def top_p_filter(logits: Tensor, p: float) -> Tensor:
    """Keep the smallest set of most likely tokens whose probability reaches p (Holtzman et al.
    2019, 1904.09751).

    The token at which the sum reaches p stays. Of equal probabilities the lower id comes first.
    """
    ordered, order = logits.softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered  # (..., V), the sum over all more likely tokens
    # The most likely token, before which the sum is 0, stays even if a tiny p rounds to 0.
    crossed = (before >= p) & (before > 0)
    # From the sorted order back to the order of ids.
    drop = crossed.new_zeros(crossed.shape).scatter(-1, order, crossed)
    return logits.masked_fill(drop, -math.inf)


def min_p_filter(logits: Tensor, p: float) -> Tensor:
    """Drop tokens less likely than p times the most likely one (Nguyen et al. 2024, 2407.01082)."""
    probabilities = logits.softmax(dim=-1)
    return logits.masked_fill(
        probabilities < p * probabilities.amax(dim=-1, keepdim=True), -math.inf
    )


FILTERS: dict[str, Filter] = {
    "top_k": Filter(
        top_k_filter, Field(0, ge=0, lt=2**63, description="Keep the k most likely tokens; 0: all.")
    ),
    "top_p": Filter(
        top_p_filter,
        Field(
            1.0,
            gt=0,
            le=1,
            description="Keep the smallest set of tokens whose probability reaches p.",
        ),
    ),
    "min_p": Filter(
        min_p_filter,
        Field(
            0.0,
            ge=0,
            le=1,
            description="Drop tokens less likely than min_p times the most likely one.",
        ),
    ),
}
