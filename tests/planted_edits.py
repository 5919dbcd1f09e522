"""Edits of the model, as a reader makes them, that fast paths must notice."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.model.attention import AutoCore
from gpt.model.gpt import Block
from gpt.model.layers import ACTIVATIONS, RMSNorm

Edit = Callable[[pytest.MonkeyPatch], None]


def edited(forward: Callable[..., Tensor], owner: type[nn.Module] = Block) -> Edit:
    return lambda patch: patch.setattr(owner, "forward", forward)


def no_attention(self: Any, x: Tensor, rotation: Any, mask: Any, cache: Any = None) -> Tensor:
    x = x + 0.0 * self.attn(self.ln_1(x), rotation, mask, cache)
    return x + self.mlp(self.ln_2(x))


def parallel(self: Any, x: Tensor, rotation: Any, mask: Any, cache: Any = None) -> Tensor:
    return x + self.attn(self.ln_1(x), rotation, mask, cache) + self.mlp(self.ln_2(x))


def post_norm(self: Any, x: Tensor, rotation: Any, mask: Any, cache: Any = None) -> Tensor:
    x = self.ln_1(x + self.attn(x, rotation, mask, cache))
    return x + self.mlp(self.ln_2(x))


def no_residual(self: Any, x: Tensor, rotation: Any, mask: Any, cache: Any = None) -> Tensor:
    x = x + self.attn(self.ln_1(x), rotation, mask, cache)
    return self.mlp(self.ln_2(x))


def detached(self: Any, x: Tensor, rotation: Any, mask: Any, cache: Any = None) -> Tensor:
    x = x + self.attn(self.ln_1(x.detach()), rotation, mask, cache)
    return x + self.mlp(self.ln_2(x))


def noisy(self: Any, x: Tensor, rotation: Any, mask: Any, cache: Any = None) -> Tensor:
    x = x + self.attn(self.ln_1(x), rotation, mask, cache) + 0.01 * torch.randn_like(x)
    return x + self.mlp(self.ln_2(x))


def windowed(self: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
    """See the last 64 positions only: the difference begins at position 64."""
    seen = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool).tril().triu(-63)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def unscaled(self: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.25)


def no_gain(self: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, self.weight.shape, None, self.eps)


def other_eps(self: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), 1e-3)


EDITS: dict[str, Edit] = {
    "attention times zero": edited(no_attention),
    "attention beside the MLP": edited(parallel),
    "norms after sublayers": edited(post_norm),
    "no residual": edited(no_residual),
    "noise": edited(noisy),
    "no gradient into attention": edited(detached),
    "a window of 64": edited(windowed, AutoCore),
    "another scale": edited(unscaled, AutoCore),
    "norms without gains": edited(no_gain, RMSNorm),
    "another eps": edited(other_eps, RMSNorm),
    "another activation": lambda patch: patch.setitem(ACTIVATIONS, "gelu", F.mish),
    "no rotation": lambda patch: patch.setattr("gpt.model.attention.rotate", lambda x, rotation: x),
}
"""Each changes what a model of RMSNorm, rotary positions, QK-norm and GELU computes."""
