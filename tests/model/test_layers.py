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


@pytest.mark.parametrize("x", ROWS.values(), ids=ROWS.keys())
@pytest.mark.parametrize("eps", [1e-5, 1e-2])
@pytest.mark.parametrize(("norm", "bias"), [("layernorm", True), ("layernorm", False), ("rmsnorm", True)])
def test_a_norm_is_its_formula(x: Tensor, eps: float, norm: str, bias: bool) -> None:
    built = build_norm(tiny_config(n_embd=16, norm=norm, bias=bias, norm_eps=eps))
    shapes = {name: tuple(parameter.shape) for name, parameter in built.named_parameters()}
    assert shapes == dict.fromkeys(("weight", "bias") if bias and norm == "layernorm" else ("weight",), (16,))
    for parameter in built.parameters():
        nn.init.normal_(parameter)
    built, x = built.double(), x.double()
    centered = x - x.mean(dim=-1, keepdim=True) if norm == "layernorm" else x
    expected = built.weight * centered / (centered.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    expected = expected if len(shapes) == 1 else expected + built.bias
    torch.testing.assert_close(built(x), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(built.float()(x.float()).double(), expected, rtol=0, atol=1e-4)


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


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_is_its_formula(name: str) -> None:
    x = torch.linspace(-6, 6, 241)
    # 1 + erf, or 1 + tanh, leaves a few spacings of 1 where it cancels, times x
    atol = 4 * SPACING * float(x.max())
    torch.testing.assert_close(ACTIVATIONS[name](x).double(), each(FORMULAS[name], x), rtol=1e-6, atol=atol)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", FORMULAS)
def test_plain_network_is_two_matrices_around_the_activation(name: str, bias: bool) -> None:
    mlp = randomized(build_mlp(tiny_config(mlp=name, bias=bias, mlp_width=50)))
    assert isinstance(mlp, MLP)
    assert mlp.c_fc.weight.shape == mlp.c_proj.weight.T.shape == (50, 32)
    x = torch.randn(2, 3, 32)
    expected = linear(mlp.c_proj, each(FORMULAS[name], linear(mlp.c_fc, x)))
    torch.testing.assert_close(mlp(x).double(), expected, rtol=0, atol=of_sums(expected, 32 + mlp.c_proj.in_features))


@pytest.mark.parametrize("bias", [True, False])
def test_swiglu_is_gate_times_value_through_a_third_matrix(bias: bool) -> None:
    mlp = randomized(build_mlp(tiny_config(mlp="swiglu", bias=bias)))
    assert isinstance(mlp, SwiGLU)
    matrices = (mlp.c_gate.weight, mlp.c_fc.weight, mlp.c_proj.weight.T)
    assert [tuple(matrix.shape) for matrix in matrices] == [(88, 32)] * 3  # 8/3 of 32, up to a multiple of 8
    x = torch.randn(2, 3, 32)
    expected = linear(mlp.c_proj, each(silu, linear(mlp.c_gate, x)) * linear(mlp.c_fc, x))
    torch.testing.assert_close(mlp(x).double(), expected, rtol=0, atol=of_sums(expected, 32 + mlp.c_proj.in_features))
