"""Normalisation over the last dimension."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.config import ModelConfig


class LayerNorm(nn.Module):
    """`weight * (x - mean) / sqrt(variance + eps) + bias` over the last dimension (Ba et al. 2016, 1607.06450)."""

    def __init__(self, width: int, bias: bool, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """`weight * x / sqrt(mean(x^2) + eps)` over the last dimension (Zhang and Sennrich 2019, 1910.07467)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


def build_norm(config: ModelConfig) -> nn.Module:
    """Return the norm of the residual stream, width C, that `config.norm` names."""
    if config.norm == "rmsnorm":
        return RMSNorm(config.n_embd, config.norm_eps)
    return LayerNorm(config.n_embd, config.bias, config.norm_eps)
