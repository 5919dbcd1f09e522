"""The layers of a block besides attention: norms, and the feed-forward network, plain or gated."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.config import ModelConfig


class RMSNorm(nn.Module):
    """`weight * x / sqrt(mean(x^2) + eps)` over the last dimension (Zhang and Sennrich 2019, 1910.07467)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


def build_norm(config: ModelConfig) -> nn.Module:
    """Return the norm of the residual stream, width C, that `config.norm` names.

    LayerNorm is `weight * (x - mean) / sqrt(variance + eps) + bias` (Ba et al. 2016, 1607.06450).
    """
    if config.norm == "rmsnorm":
        return RMSNorm(config.n_embd, config.norm_eps)
    return nn.LayerNorm(config.n_embd, config.norm_eps, bias=config.bias)


def gelu_tanh(x: Tensor) -> Tensor:
    """Compute GELU by its tanh approximation, as GPT-2 was trained (1606.08415, section 2)."""
    return F.gelu(x, approximate="tanh")


def relu2(x: Tensor) -> Tensor:
    """Compute the squared ReLU (So et al. 2021, 2109.08668)."""
    return F.relu(x).square()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "relu": torch.relu,
    "relu2": relu2,
}


class MLP(nn.Module):
    """`c_proj(activation(c_fc(x)))` (1706.03762, equation 2)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, config.mlp_hidden, bias=config.bias)
        self.activation = ACTIVATIONS[config.mlp]
        self.c_proj = nn.Linear(config.mlp_hidden, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, T, C) to (B, T, C)."""
        return self.dropout(self.c_proj(self.activation(self.c_fc(x))))


class SwiGLU(nn.Module):
    """`c_proj(silu(c_gate(x)) * c_fc(x))` (Shazeer 2020, 2002.05202)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.c_gate = nn.Linear(config.n_embd, config.mlp_hidden, bias=config.bias)
        self.c_fc = nn.Linear(config.n_embd, config.mlp_hidden, bias=config.bias)
        self.c_proj = nn.Linear(config.mlp_hidden, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, T, C) to (B, T, C)."""
        return self.dropout(self.c_proj(F.silu(self.c_gate(x)) * self.c_fc(x)))


def build_mlp(config: ModelConfig) -> nn.Module:
    """Return the feed-forward network that `config.mlp` names."""
    return SwiGLU(config) if config.mlp == "swiglu" else MLP(config)
