import pytest
import torch
from torch import Tensor

from gpt.model.norm import LayerNorm, RMSNorm, build_norm
from tiny import tiny_config

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
    norm = LayerNorm(16, bias, eps)
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


def test_layer_norm_ignores_shift_and_scale_and_rms_norm_only_scale() -> None:
    x = ROWS["ordinary"]
    layer, rms = LayerNorm(16, False, 1e-12), RMSNorm(16, 1e-12)
    torch.testing.assert_close(layer(3 * x + 7), layer(x), rtol=0, atol=1e-5)
    torch.testing.assert_close(rms(3 * x), rms(x), rtol=0, atol=1e-5)
    assert not torch.allclose(rms(x + 7), rms(x), atol=0.1)


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


@pytest.mark.parametrize("norm", [LayerNorm(16, True, 1e-5), RMSNorm(16, 1e-5)], ids=["layernorm", "rmsnorm"])
def test_a_norm_of_bfloat16_stays_close_to_float32(norm: LayerNorm | RMSNorm) -> None:
    x = ROWS["ordinary"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = norm(x.bfloat16())
    torch.testing.assert_close(y.float(), norm(x), rtol=0, atol=0.03)
