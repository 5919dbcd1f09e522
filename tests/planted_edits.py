"""Edits of the model, one of each of its parts, such as a reader makes, which fast paths have to
notice.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gpt.model.attention import AutoCore
from gpt.model.gpt import Block
from gpt.model.layers import ACTIVATIONS, RMSNorm

Edit = Callable[[pytest.MonkeyPatch], None]


def edited(owner: type, forward: Callable[..., Tensor]) -> Edit:
    """Return the edit that replaces the `forward` of a class."""
    return lambda patch: patch.setattr(owner, "forward", forward)


def no_attention(self: Any, x: Tensor, rotation: Any, mask: Any, cache: Any = None) -> Tensor:
    x = x + 0.0 * self.attn(self.ln_1(x), rotation, mask, cache)
    return x + self.mlp(self.ln_2(x))


def no_residual(self: Any, x: Tensor, rotation: Any, mask: Any, cache: Any = None) -> Tensor:
    x = x + self.attn(self.ln_1(x), rotation, mask, cache)
    return self.mlp(self.ln_2(x))


def windowed(self: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
    """See the last 64 positions only: the difference begins at position 64."""
    seen = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool).tril().triu(-63)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def unscaled(self: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.25)


def other_eps(self: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), 1e-3)


EDITS: dict[str, Edit] = {
    "attention times zero": edited(Block, no_attention),
    "no residual": edited(Block, no_residual),
    "a window of 64": edited(AutoCore, windowed),
    "another scale": edited(AutoCore, unscaled),
    "another eps": edited(RMSNorm, other_eps),
    "another activation": lambda patch: patch.setitem(ACTIVATIONS, "gelu", F.mish),
    "no rotation": lambda patch: patch.setattr("gpt.model.attention.rotate", lambda x, rotation: x),
}
"""Each changes what a model of RMSNorm, rotary positions, QK-norm and GELU computes."""
