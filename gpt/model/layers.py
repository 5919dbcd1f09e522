"""The layers of a block besides attention: norms, and the feed-forward network, plain or gated."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.config import ModelConfig
from gpt.config.components import SHIPPED
from gpt.system.errors import ConfigError, first_line


class RMSNorm(nn.Module):
    """`weight * x / sqrt(mean(x^2) + eps)` over the last dimension.

    See Zhang and Sennrich 2019, 1910.07467.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


NORMS: dict[str, Callable[[ModelConfig], nn.Module]] = {
    "layernorm": lambda config: nn.LayerNorm(
        config.n_embd, config.norm_eps, bias=config.bias, dtype=torch.float32
    ),
    "rmsnorm": lambda config: RMSNorm(config.n_embd, config.norm_eps),
}
"""Norms of the residual stream, width C, by `model.norm`.

LayerNorm is `weight * (x - mean) / sqrt(variance + eps) + bias` (Ba et al. 2016, 1607.06450).
"""


def build_norm(config: ModelConfig) -> nn.Module:
    """Return the norm of the residual stream that `config.norm` names."""
    return NORMS[config.norm](config)


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
"""Elementwise functions, or classes of modules that compute one, by `model.mlp`."""


class MLP(nn.Module):
    """A plain feed-forward network, `c_proj(activation(c_fc(x)))` (1706.03762, equation 2)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.c_fc = nn.Linear(
            config.n_embd, config.mlp_hidden, bias=config.bias, dtype=torch.float32
        )
        self.activation = build_activation(config.mlp)
        self.c_proj = nn.Linear(
            config.mlp_hidden, config.n_embd, bias=config.bias, dtype=torch.float32
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, T, C) to (B, T, C)."""
        return self.dropout(self.c_proj(self.activation(self.c_fc(x))))


class SwiGLU(nn.Module):
    """A gated network, `c_proj(silu(c_gate(x)) * c_fc(x))` (Shazeer 2020, 2002.05202)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.c_gate = nn.Linear(
            config.n_embd, config.mlp_hidden, bias=config.bias, dtype=torch.float32
        )
        self.c_fc = nn.Linear(
            config.n_embd, config.mlp_hidden, bias=config.bias, dtype=torch.float32
        )
        self.c_proj = nn.Linear(
            config.mlp_hidden, config.n_embd, bias=config.bias, dtype=torch.float32
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, T, C) to (B, T, C)."""
        return self.dropout(self.c_proj(F.silu(self.c_gate(x)) * self.c_fc(x)))


MLPS: dict[str, Callable[[ModelConfig], nn.Module]] = {"swiglu": SwiGLU}
"""Whole feed-forward networks, (B, T, C) to (B, T, C), by `model.mlp`.

The other values of `model.mlp` name activations, which `MLP` calls.
"""


def build_mlp(config: ModelConfig) -> nn.Module:
    """Return the feed-forward network that `config.mlp` names."""
    return MLPS.get(config.mlp, MLP)(config)


def build_activation(name: str) -> Callable[[Tensor], Tensor]:
    """Return the activation that a name stands for.

    A plugin's activation is tried on a tiny input, so that its mistakes are found before training.

    Raises:
        ConfigError: the activation of a plugin fails, or returns another shape.
    """
    part = ACTIVATIONS[name]
    # A class of modules is instantiated for each network, so that each has its own parameters.
    activation = part() if isinstance(part, type) else part
    if name not in SHIPPED["model.mlp"]:
        x = torch.zeros(1, 2, 8, dtype=torch.float32)
        try:
            found = getattr(activation(x), "shape", None)  # None if the result is no tensor
        except Exception as error:  # a plugin's function can raise anything
            raise ConfigError(
                f"model.mlp: {name} raises {type(error).__name__}: {first_line(error)}"
            ) from error
        if found != x.shape:
            got = "no tensor" if found is None else f"a tensor of shape {tuple(found)}"
            raise ConfigError(
                f"model.mlp: {name} returns {got} for one of shape {tuple(x.shape)}; "
                "expected the same"
            )
    return activation
