import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from gpt.model.layers import ACTIVATIONS, MLP, RMSNorm, SwiGLU, build_mlp, build_norm
from tiny import tiny_config
from tolerances import SPACING, of_sums

ROWS = {
    "ordinary": torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(1)),
    "far from zero": 100 + torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(2)),
    "tiny": 1e-4 * torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(3)),
    "constant": torch.full((2, 3, 16), 4.0),
    "zero": torch.zeros(2, 3, 16),
}


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    x, weight = x.double(), weight.double()
    mean = x.sum(dim=-1, keepdim=True) / x.size(-1)
    variance = ((x - mean) ** 2).sum(dim=-1, keepdim=True) / x.size(-1)
    return weight * (x - mean) / (variance + eps).sqrt() + (0 if bias is None else bias.double())


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x, weight = x.double(), weight.double()
    return weight * x / ((x**2).sum(dim=-1, keepdim=True) / x.size(-1) + eps).sqrt()


@pytest.mark.parametrize("x", ROWS.values(), ids=ROWS.keys())
@pytest.mark.parametrize("eps", [1e-5, 1e-2])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm_is_its_formula(x: Tensor, eps: float, bias: bool) -> None:
    norm = build_norm(tiny_config(n_embd=16, norm="layernorm", bias=bias, norm_eps=eps))
    assert isinstance(norm, nn.LayerNorm)
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter)
    expected = layer_norm(x, norm.weight, norm.bias, eps)
    torch.testing.assert_close(norm(x).double(), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(norm.double()(x.double()), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("x", ROWS.values(), ids=ROWS.keys())
@pytest.mark.parametrize("eps", [1e-5, 1e-2])
def test_rms_norm_is_its_formula(x: Tensor, eps: float) -> None:
    norm = RMSNorm(16, eps)
    torch.nn.init.normal_(norm.weight)
    expected = rms_norm(x, norm.weight, eps)
    torch.testing.assert_close(norm(x).double(), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(norm.double()(x.double()), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("norm", "bias", "parameters"),
    [
        ("layernorm", True, {"weight", "bias"}),
        ("layernorm", False, {"weight"}),
        ("rmsnorm", True, {"weight"}),
        ("rmsnorm", False, {"weight"}),
    ],
)
def test_the_configured_norm_has_the_width_of_the_model(norm: str, bias: bool, parameters: set[str]) -> None:
    built = build_norm(tiny_config(norm=norm, bias=bias, norm_eps=1e-3))
    assert {name: tuple(value.shape) for name, value in built.named_parameters()} == dict.fromkeys(parameters, (32,))
    assert built.eps == 1e-3


@pytest.mark.parametrize("norm", [nn.LayerNorm(16, 1e-5), RMSNorm(16, 1e-5)], ids=["layernorm", "rmsnorm"])
def test_a_norm_of_bfloat16_stays_close_to_float32(norm: nn.LayerNorm | RMSNorm) -> None:
    x = ROWS["ordinary"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = norm(x.bfloat16())
    torch.testing.assert_close(y.float(), norm(x), rtol=0, atol=0.03)


FORMULAS: dict[str, Callable[[float], float]] = {
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: max(x, 0.0),
    "relu2": lambda x: max(x, 0.0) ** 2,
}


def silu(x: float) -> float:
    return x / (1 + math.exp(-x))


def each(function: Callable[[float], float], x: Tensor) -> Tensor:
    return torch.tensor([function(value) for value in x.flatten().tolist()], dtype=torch.float64).view(x.shape)


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """x W^T + b in float64, without torch's `linear`."""
    y = (x.double().unsqueeze(-2) * layer.weight.double()).sum(dim=-1)
    return y if layer.bias is None else y + layer.bias.double()


def randomized(mlp: nn.Module) -> nn.Module:
    for parameter in mlp.parameters():
        nn.init.normal_(parameter, std=0.3)
    return mlp


def test_every_activation_has_its_formula_here() -> None:
    assert ACTIVATIONS.keys() == FORMULAS.keys()


@pytest.mark.parametrize("name", FORMULAS)
def test_activation_is_its_formula(name: str) -> None:
    x = torch.linspace(-6, 6, 241)
    # 1 + erf, or 1 + tanh, leaves a few spacings of 1 where it cancels, times x
    atol = 4 * SPACING * float(x.max())
    torch.testing.assert_close(ACTIVATIONS[name](x).double(), each(FORMULAS[name], x), rtol=1e-6, atol=atol)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", FORMULAS)
def test_plain_network_is_two_matrices_around_the_activation(name: str, bias: bool) -> None:
    mlp = randomized(build_mlp(tiny_config(mlp=name, bias=bias)))
    assert isinstance(mlp, MLP)
    x = torch.randn(2, 3, 32)
    expected = linear(mlp.c_proj, each(FORMULAS[name], linear(mlp.c_fc, x)))
    torch.testing.assert_close(mlp(x).double(), expected, rtol=0, atol=of_sums(expected, 32 + mlp.c_proj.in_features))


@pytest.mark.parametrize("bias", [True, False])
def test_swiglu_is_gate_times_value_through_a_third_matrix(bias: bool) -> None:
    mlp = randomized(build_mlp(tiny_config(mlp="swiglu", bias=bias)))
    assert isinstance(mlp, SwiGLU)
    assert sum(parameter.dim() == 2 for parameter in mlp.parameters()) == 3
    x = torch.randn(2, 3, 32)
    expected = linear(mlp.c_proj, each(silu, linear(mlp.c_gate, x)) * linear(mlp.c_fc, x))
    torch.testing.assert_close(mlp(x).double(), expected, rtol=0, atol=of_sums(expected, 32 + mlp.c_proj.in_features))


@pytest.mark.parametrize(
    ("n_embd", "mlp", "mlp_width", "hidden"),
    [
        (32, "gelu", None, 128),
        (64, "relu2", None, 256),
        (48, "swiglu", None, 128),  # 8/3 of 48 is a multiple of 8 already
        (64, "swiglu", None, 176),  # 170.67
        (100, "swiglu", None, 272),  # 266.67
        (32, "gelu", 50, 50),
        (32, "swiglu", 50, 50),
    ],
)
def test_hidden_width(n_embd: int, mlp: str, mlp_width: int | None, hidden: int) -> None:
    built = build_mlp(tiny_config(n_embd=n_embd, mlp=mlp, mlp_width=mlp_width))
    assert built.c_fc.weight.shape == (hidden, n_embd)
    assert built.c_proj.weight.shape == (n_embd, hidden)
    assert mlp != "swiglu" or built.c_gate.weight.shape == (hidden, n_embd)
