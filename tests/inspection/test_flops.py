import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from gpt.inspection.flops import forward_flops, matmul_parameters, training_flops
from gpt.model import GPT
from tiny import tiny_config

VARIANTS: dict[str, dict[str, object]] = {
    "gpt2": {"bias": True, "dropout": 0.1},
    "untied": {"tie_weights": False, "position": "sinusoidal"},
    "multi-query": {"n_kv_head": 1},
    "llama": {"n_kv_head": 2, "mlp": "swiglu", "norm": "rmsnorm", "position": "rope"},
    "narrow mlp": {"mlp": "relu2", "mlp_width": 24, "qk_norm": True, "logit_softcap": 5.0},
    "deep": {"n_layer": 3, "n_embd": 64, "vocab_size": 7},
}
every_variant = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
every_shape = pytest.mark.parametrize(("batch", "length"), [(1, 1), (3, 16)])


@every_variant
@every_shape
def test_forward_flops_are_what_torch_counts(variant: dict[str, object], batch: int, length: int) -> None:
    config = tiny_config(attention="reference", **variant)
    model, counter = GPT(config), FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(torch.zeros(batch, length, dtype=torch.long))
    assert forward_flops(config, batch, length) == counter.get_total_flops()


@every_variant
@every_shape
def test_training_flops_are_what_torch_counts(variant: dict[str, object], batch: int, length: int) -> None:
    config = tiny_config(attention="reference", **variant)
    model, counter = GPT(config), FlopCounterMode(display=False)
    with counter:
        model(torch.zeros(batch, length, dtype=torch.long)).sum().backward()
    assert training_flops(config, batch, length) == counter.get_total_flops()


@every_variant
def test_matmul_parameters_are_those_of_the_linear_layers(variant: dict[str, object]) -> None:
    config = tiny_config(**variant)
    linear = [module for module in GPT(config).modules() if isinstance(module, nn.Linear)]
    assert matmul_parameters(config) == sum(layer.weight.numel() for layer in linear)


def test_flops_of_two_tokens_by_hand() -> None:
    config = tiny_config(n_layer=1, n_head=1, n_embd=2, vocab_size=3, mlp_width=4)
    projections, mlp, head = 4 * 2 * 2, 2 * 2 * 4, 2 * 3
    assert matmul_parameters(config) == projections + mlp + head == 38
    scores = weighted_sum = 2 * 2 * 2  # 2 queries, 2 keys, 2 wide
    assert forward_flops(config, 1, 2) == 2 * (2 * 38 + scores + weighted_sum) == 184
    assert forward_flops(config, 5, 2) == 5 * 184
    assert training_flops(config, 1, 2) == 3 * 184
