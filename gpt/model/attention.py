"""Causal multi-head and grouped-query attention, and the implementations of its core.

A core takes queries (B, H, T, D), keys and values (B, K, S, D), and returns (B, H, T, D).
Its `mask` is one of these:

- None for plain causal attention, aligned at the end: query t sees the keys up to S - T + t.
- Boolean (B or 1, 1, T, S), True where a query attends to a key.
- Floats (B or 1, H, T, S), which are added to the scores; -inf where a query does not attend.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.config import ModelConfig
from gpt.model.layers import RMSNorm
from gpt.model.positions import Rotation, rotate


class Cache(ABC):
    """The methods of a key/value cache that the model calls."""

    @abstractmethod
    def positions(self, new: int) -> Tensor:
        """Return the positions of the next `new` tokens.

        Their shape is (T,), or (B, T) for sequences of different lengths.
        """

    def mask(self, new: int) -> Tensor | None:
        """Return attention's `mask` for the next `new` queries, as this module describes it."""
        return None

    @abstractmethod
    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store new keys and values (B, K, T, D) of a layer.

        Return all keys and values that the new queries may attend to, (B, K, S, D) each.
        """

    def advance(self, new: int) -> None:  # noqa: B027
        """Count `new` positions as stored, in a cache that counts its own positions.

        The model calls this once, after the last block, since all layers append at the same
        positions.
        """


Append = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""`Cache.append` of one layer."""


class ReferenceCore(nn.Module):
    """Attention written out: scores, mask, softmax, weighted sum (1706.03762, equation 1)."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        pattern = masked_scores(q, k, mask).softmax(dim=-1)  # (B, H, T, S)
        return weighted_sum(self.dropout(pattern), v)


class SDPACore(nn.Module):
    """Attention by torch's fused `scaled_dot_product_attention`, which keeps no (T, S) matrix."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        queries = q.size(-2)
        keys = k.size(-2)
        # torch aligns its causal mask at the start: with fewer queries than keys it would hide keys
        # that a query may attend to. A single query attends to all keys, and needs no mask.
        if mask is None and 1 < queries < keys:
            mask = causal_mask(queries, keys, q.device)
        if mask is not None and mask.is_floating_point():
            mask = mask.to(q.dtype)  # torch refuses a mask of another type, as under autocast
        return F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            # torch.jit.trace turns sizes into tensors: `bool` makes Python values of comparisons
            is_causal=mask is None and bool(queries > 1),
            enable_gqa=bool(q.size(1) != k.size(1)),
        )


class AutoCore(nn.Module):
    """Attention by the faster of the two cores above.

    In training on a CPU the reference is faster in bfloat16, where the backward pass of the fused
    kernel is slow, and when it is compiled. Everywhere else the fused kernel is faster.
    """

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.reference = ReferenceCore(dropout)
        self.sdpa = SDPACore(dropout)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Write attention out where that trains faster: on a CPU, in bfloat16 or compiled."""
        trains_on_cpu = q.device.type == "cpu" and torch.is_grad_enabled()
        written_out = trains_on_cpu and (q.dtype == torch.bfloat16 or torch.compiler.is_compiling())
        core = self.reference if written_out else self.sdpa
        return core(q, k, v, mask)


CORES = {"auto": AutoCore, "reference": ReferenceCore, "sdpa": SDPACore}
"""Classes of attention cores, by the name in `model.attention`."""


class Attention(nn.Module):
    """Causal self-attention with H query heads and K <= H key and value heads.

    K = H is multi-head attention (1706.03762), K = 1 is multi-query (1911.02150), and a K between
    them is grouped-query (2305.13245). With `qk_norm` an RMSNorm normalizes each query and key head
    (2302.05442).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.n_kv_head = config.kv_heads
        self.head_dim = config.head_dim
        kv_width = self.n_kv_head * self.head_dim
        self.c_q = nn.Linear(config.n_embd, config.n_embd, bias=config.bias, dtype=torch.float32)
        self.c_k = nn.Linear(config.n_embd, kv_width, bias=config.bias, dtype=torch.float32)
        self.c_v = nn.Linear(config.n_embd, kv_width, bias=config.bias, dtype=torch.float32)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias, dtype=torch.float32)
        self.q_norm = RMSNorm(self.head_dim, config.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(self.head_dim, config.norm_eps) if config.qk_norm else nn.Identity()
        self.core = CORES[config.attention](config.weights_dropout)
        self.resid_dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        rotation: Rotation | None,
        mask: Tensor | None,
        append: Append | None = None,
    ) -> Tensor:
        """Map x (B, T, C) to (B, T, C).

        Args:
            append: stores the new keys and values in a cache, and returns all of them.
        """
        q = self.q_norm(_split_heads(self.c_q(x), self.n_head))  # (B, H, T, D)
        k = self.k_norm(_split_heads(self.c_k(x), self.n_kv_head))  # (B, K, T, D)
        v = _split_heads(self.c_v(x), self.n_kv_head)  # (B, K, T, D)
        # Keys are rotated before they are stored, so that each key is rotated only once.
        if rotation is not None:
            q = rotate(q, rotation)
            k = rotate(k, rotation)
        if append is not None:
            k, v = append(k, v)  # (B, K, S, D)
        y = self.core(q, k, v, mask).transpose(1, 2).flatten(2)  # (B, T, C)
        return self.resid_dropout(self.c_proj(y))


def masked_scores(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    """Return `q k^T / sqrt(D)`, (B, H, T, S), -inf where a query does not attend to a key."""
    # The query heads of a group share one key head, which is repeated for each of them.
    k = k.repeat_interleave(q.size(1) // k.size(1), dim=1)  # (B, H, S, D)
    if mask is None:
        mask = causal_mask(q.size(-2), k.size(-2), q.device)
    scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    if mask.is_floating_point():
        return scores + mask.to(scores.dtype)
    return scores.masked_fill(~mask, -math.inf)


def weighted_sum(pattern: Tensor, v: Tensor) -> Tensor:
    """Multiply attention weights (B, H, T, S) by values (B, K, S, D); return (B, H, T, D)."""
    # The query heads of a group share one value head, which is repeated for each of them.
    v = v.repeat_interleave(pattern.size(1) // v.size(1), dim=1)  # (B, H, S, D)
    return pattern @ v


def causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """Return a boolean mask (1, 1, T, S), True where query t attends to key s: s <= S - T + t."""
    ones = torch.ones(queries, keys, dtype=torch.bool, device=device)
    return ones.tril(diagonal=keys - queries).view(1, 1, queries, keys)


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """Reshape (B, T, heads * D) to (B, heads, T, D)."""
    return x.view(*x.shape[:-1], heads, x.size(-1) // heads).transpose(1, 2)
