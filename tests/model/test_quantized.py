"""Weights of few bits: what they stand for, what they cost, and what is refused."""

import pytest
import torch
from torch import nn

import gpt
from gpt.model.quantized import (
    FORMATS,
    BFloat16Linear,
    QuantizedLinear,
    pack,
    round_to_integers,
    unpack,
    weights_format,
)
from gpt.system.errors import InputError
from tiny import sharp_model


def linear(outputs: int = 24, inputs: int = 64, bias: bool = True) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.normal_(layer.weight)
    return layer


@pytest.mark.parametrize("weights", sorted(FORMATS))
@pytest.mark.parametrize("bias", [True, False])
def test_quantized_weights_are_off_by_clipping_and_half_a_step(weights: str, bias: bool) -> None:
    layer = linear(bias=bias)
    x = torch.randn(2, 5, 64)
    largest = 2 ** (FORMATS[weights][0] - 1) - 1
    nn.init.zeros_(layer.weight[0])
    quantized = QuantizedLinear(layer, *FORMATS[weights])
    quantized.fill(layer.weight)
    torch.testing.assert_close(quantized(x), x @ quantized.weight.T + (layer.bias if bias else 0))
    groups = layer.weight.detach().view(*quantized.scales.shape, -1)
    scales = quantized.scales.unsqueeze(-1)
    clipped = groups.clamp(-largest * scales, largest * scales)
    assert ((quantized.weight.view(groups.shape) - clipped).abs() <= scales / 2 * 1.0001).all()
    assert not quantized.weight[0].any()


def test_scale_of_a_group_has_the_least_error_of_those_tried() -> None:
    # Clipping the 1 has a smaller error than rounding the others to 0 or 1.
    weight = torch.tensor([[0.5, -0.5, 0.5, -0.5, 1.0]])
    integers, scale = round_to_integers(weight, largest=1)
    assert float(scale) == pytest.approx(0.6, abs=0.02)
    assert integers.tolist() == [[1, -1, 1, -1, 1]]


def test_packing_keeps_every_number_of_four_bits() -> None:
    every = torch.arange(-8, 8, dtype=torch.int8)
    pairs = torch.cartesian_prod(every, every)
    assert torch.equal(unpack(pack(pairs)), pairs)


@pytest.mark.parametrize(("weights", "near"), [("bf16", 0.02), ("int8", 0.03), ("int4", 0.4)])
@pytest.mark.parametrize(
    "changes", [{}, {"mlp": "swiglu", "n_kv_head": 2}, {"bias": True, "tie_weights": True}], ids=str
)
def test_quantized_model_has_logits_near_the_original(
    weights: str, near: float, changes: dict[str, object]
) -> None:
    model = sharp_model(**changes)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    quantized = gpt.quantize(model, weights)
    assert weights_format(model) == "float32"
    assert weights_format(quantized) == weights
    idx = torch.randint(23, (2, 16))
    logits = quantized(idx)
    expected = model(idx)
    assert 0 < (logits - expected).norm() < near * expected.norm()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(parameter.requires_grad for parameter in quantized.parameters())
    layers = [layer for block in quantized.h for layer in block.modules()]
    assert not any(isinstance(layer, nn.Linear) for layer in layers)
    assert isinstance(quantized.lm_head, nn.Linear)


def test_weights_in_bfloat16_are_rounded_and_nothing_else() -> None:
    layer = linear()
    assert torch.equal(BFloat16Linear(layer).weight, layer.weight.bfloat16().float())
    assert BFloat16Linear(layer).bias is layer.bias


def test_quantize_refuses_unknown_formats_and_quantized_models() -> None:
    with pytest.raises(InputError, match=r"^weights 'int2': expected one of bf16, int8, int4$"):
        gpt.quantize(sharp_model(), "int2")
    with pytest.raises(
        InputError, match=r"^int4 needs even widths, and c_proj has 33 inputs; take int8$"
    ):
        gpt.quantize(sharp_model(mlp_width=33), "int4")
    with pytest.raises(InputError, match="weights are bf16 already; take the float32 ones"):
        gpt.quantize(gpt.quantize(sharp_model(), "bf16"), "int8")
