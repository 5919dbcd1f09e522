"""A decoder-only transformer in plain PyTorch: token ids in, logits of the next token out.

Shapes: B batch, T new positions, S positions so far (those in the cache and the new ones), C width, H query heads,
K key and value heads, D = C / H, V vocabulary. `config` has the fields of config.json.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def relu2(x: Tensor) -> Tensor:
    """Return the square of what is positive, otherwise 0."""
    return F.relu(x).square()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "relu2": relu2,
}


class Decoder(nn.Module):
    """Pre-norm blocks between an embedding and a head."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd) if config.position == "learned" else None
        self.rotation = rotation_tables(config) if config.position == "rope" else None
        self.drop = nn.Dropout(config.dropout)
        self.h = nn.ModuleList(Block(config, layer) for layer in range(config.n_layer))
        self.ln_f = build_norm(config)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        if config.tie_weights:
            self.lm_head.weight = self.wte.weight

    def forward(
        self,
        idx: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Any = None,
        keep: int | Tensor = 0,
    ) -> Tensor:
        """Compute the logits of the next token.

        Args:
            idx: token ids, (B, T).
            attention_mask: (B, S), 0 on padding, which may be on either side.
            position_ids: (B, T); by default they count from the first token that is no padding.
            cache: a `DynamicCache` of transformers, to which keys, values and inputs of convolutions are appended.
            keep: how many of the last positions to return, or which; 0: all.

        Returns:
            (B, T or as many as kept, V).
        """
        seen = 0 if cache is None else int(cache.get_seq_length())
        length = seen + idx.size(1)
        if length > self.config.block_size:
            window = self.config.block_size
            raise ValueError(f"{length} tokens do not fit the window of {window}; lower max_new_tokens, or give fewer")
        if attention_mask is not None and attention_mask.shape != (len(idx), length):
            raise ValueError(f"attention_mask must be {(len(idx), length)}, not {tuple(attention_mask.shape)}")
        keys = torch.arange(length, device=idx.device)
        queries = keys[seen:, None]
        mask, positions, kept = keys <= queries, queries.T, None  # (T, S), (1, T)
        if attention_mask is not None:
            is_token = attention_mask.bool()
            mask = (mask & is_token[:, None] | (keys == queries))[:, None]  # (B, 1, T, S); every softmax has a key
            positions, kept = (is_token.cumsum(1) - 1).clamp(min=0)[:, seen:], is_token[:, seen:, None]
        positions = positions if position_ids is None else position_ids
        x = self.wte(idx)  # (B, T, C)
        x = self.drop(x if self.wpe is None else x + self.wpe(positions))
        rotation = None
        if self.rotation is not None:
            self.rotation = self.rotation.to(idx.device)
            rotation = self.rotation[:, positions].unsqueeze(2)  # (2, B, 1, T, D)
        for block in self.h:
            x = block(x, rotation, mask, kept, cache)
        x = x[:, -keep:] if isinstance(keep, int) else x[:, keep]
        logits, cap = self.lm_head(self.ln_f(x)), self.config.logit_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)


class Block(nn.Module):
    """`x + attn(ln_1(x))`, then `x + mlp(ln_2(x))`, with a short convolution before the MLP where there is one."""

    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = build_norm(config), build_norm(config)
        self.attn, self.mlp = Attention(config, layer), MLP(config)
        self.mlp_conv = None if config.mlp_conv is None else ShortConv(config, config.n_layer + layer)

    def forward(self, x: Tensor, rotation: Tensor | None, mask: Tensor, kept: Tensor | None, cache: Any) -> Tensor:
        """Map x (B, T, C) to (B, T, C)."""
        x = x + self.attn(self.ln_1(x), rotation, mask, cache)
        h = self.ln_2(x)
        return x + self.mlp(h if self.mlp_conv is None else self.mlp_conv(h, kept, cache))


class Attention(nn.Module):
    """Causal self-attention, H / K query heads to each key head."""

    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        self.layer, self.head_dim, self.dropout = layer, config.n_embd // config.n_head, config.attention_dropout
        kv_width = config.n_kv_head * self.head_dim
        self.c_q = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.c_k = nn.Linear(config.n_embd, kv_width, bias=config.bias)
        self.c_v = nn.Linear(config.n_embd, kv_width, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.q_norm = nn.RMSNorm(self.head_dim, config.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(self.head_dim, config.norm_eps) if config.qk_norm else nn.Identity()
        self.resid_dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, rotation: Tensor | None, mask: Tensor, cache: Any) -> Tensor:
        """Map x (B, T, C) to (B, T, C)."""
        heads = *x.shape[:2], -1, self.head_dim
        q, k, v = (part(x).view(heads).transpose(1, 2) for part in (self.c_q, self.c_k, self.c_v))
        q, k = self.q_norm(q), self.k_norm(k)  # (B, H, T, D), (B, K, T, D)
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        if cache is not None:
            k, v = cache.update(k, v, self.layer)  # (B, K, S, D)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, mask, dropout, enable_gqa=q.size(1) != k.size(1))
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).flatten(2)))


class ShortConv(nn.Module):
    """`x[t] + sum_j weight[:, 0, j] * x[t - j]` in each channel, 0 ahead of the text and on padding."""

    def __init__(self, config: Any, slot: int) -> None:
        super().__init__()
        self.slot = slot
        self.weight = nn.Parameter(torch.zeros(config.n_embd, 1, config.mlp_conv))

    def forward(self, x: Tensor, kept: Tensor | None, cache: Any) -> Tensor:
        """Map x (B, T, C) to (B, T, C)."""
        past, needed = x if kept is None else x * kept, x.size(1) + self.weight.size(2) - 1
        if cache is not None:  # its inputs are cached like the keys of one head of width C, without values
            past = cache.update(past.unsqueeze(1), past.new_empty(len(x), 1, x.size(1), 0), self.slot)[0].squeeze(1)
        past = F.pad(past, (0, 0, max(0, needed - past.size(1)), 0))[:, -needed:]
        return x + F.conv1d(past.transpose(1, 2), self.weight.flip(2), groups=x.size(2)).transpose(1, 2)


class MLP(nn.Module):
    """`c_proj(activation(c_fc(x)))`, or for swiglu `c_proj(silu(c_gate(x)) * c_fc(x))`."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, config.mlp_width, bias=config.bias)
        self.c_proj = nn.Linear(config.mlp_width, config.n_embd, bias=config.bias)
        self.c_gate = nn.Linear(config.n_embd, config.mlp_width, bias=config.bias) if config.mlp == "swiglu" else None
        self.activation = ACTIVATIONS.get(config.mlp, F.silu)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, T, C) to (B, T, C)."""
        h = self.c_fc(x)
        h = self.activation(h) if self.c_gate is None else self.activation(self.c_gate(x)) * h
        return self.dropout(self.c_proj(h))


def build_norm(config: Any) -> nn.Module:
    """Return a norm of the residual stream."""
    if config.norm == "layernorm":
        return nn.LayerNorm(config.n_embd, config.norm_eps, bias=config.bias)
    return nn.RMSNorm(config.n_embd, config.norm_eps)


def rotation_tables(config: Any) -> Tensor:
    """Return cos and sin of `position / theta^(2i/D)`, (2, block_size, D); columns `i` and `i + D/2` are a pair.

    They are made on the CPU, whatever the default device is, and are no buffer, which `from_pretrained` would not fill.
    """
    width, cpu = config.n_embd // config.n_head, torch.device("cpu")
    frequencies = config.rope_theta ** (-torch.arange(0, width, 2, dtype=torch.float64, device=cpu) / width)
    positions = torch.arange(config.block_size, dtype=torch.float64, device=cpu)
    angles = torch.outer(positions, frequencies).repeat(1, 2)
    return torch.stack((angles.cos(), angles.sin())).float()


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotate x (B, heads, T, D), its pairs of columns, by cos and sin (2, B, 1, T, D)."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = rotation
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)
