import pytest
import torch
from torch import nn

from gpt.config import OptimConfig
from gpt.model import GPT
from gpt.training.optimizers import build_optimizer
from tiny import tiny_config

CPU = torch.device("cpu")


@pytest.mark.parametrize("tie_weights", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_every_parameter_is_in_one_group_and_only_matrices_are_decayed(bias: bool, tie_weights: bool) -> None:
    model = GPT(tiny_config(bias=bias, tie_weights=tie_weights, qk_norm=True))
    optimizer = build_optimizer(model, OptimConfig(weight_decay=0.3), CPU)
    decay = {parameter: group["weight_decay"] for group in optimizer.param_groups for parameter in group["params"]}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(decay)
    assert {name: decay[parameter] for name, parameter in model.named_parameters()} == {
        name: 0.3 if parameter.dim() >= 2 else 0.0 for name, parameter in model.named_parameters()
    }
    vectors = {name.rsplit(".", 1)[0] for name, parameter in model.named_parameters() if decay[parameter] == 0}
    assert {"ln_f", "h.0.ln_1", "h.1.attn.q_norm"} <= vectors
    assert ("h.0.mlp.c_fc" in vectors) is bias


def test_the_configuration_arrives() -> None:
    config = OptimConfig(learning_rate=0.02, betas=(0.7, 0.8), eps=1e-5)
    optimizer = build_optimizer(GPT(tiny_config()), config, CPU)
    for group in optimizer.param_groups:
        assert (group["lr"], group["betas"], group["eps"]) == (0.02, (0.7, 0.8), 1e-5)


@pytest.mark.parametrize(("device", "fused"), [("cpu", True), ("cuda", True), ("mps", False)])
def test_the_fused_kernel_is_used_where_torch_has_it(device: str, fused: bool) -> None:
    optimizer = build_optimizer(GPT(tiny_config()), OptimConfig(), torch.device(device))
    assert [group["fused"] for group in optimizer.param_groups] == [fused, fused]


def test_steps_follow_the_formulas_of_adamw() -> None:
    """1711.05101, algorithm 2, with the decay multiplied by the learning rate, as torch does it."""
    rate, decay, beta1, beta2, eps = 0.03, 0.2, 0.8, 0.95, 1e-6
    model = nn.Linear(5, 3, dtype=torch.float64)
    config = OptimConfig(learning_rate=rate, weight_decay=decay, betas=(beta1, beta2), eps=eps)
    optimizer = build_optimizer(model, config, CPU)
    expected = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    first = {name: torch.zeros_like(value) for name, value in expected.items()}
    second = {name: torch.zeros_like(value) for name, value in expected.items()}
    for step in (1, 2, 3):
        for name, parameter in model.named_parameters():
            gradient = parameter.grad = torch.randn_like(parameter)
            first[name] = beta1 * first[name] + (1 - beta1) * gradient
            second[name] = beta2 * second[name] + (1 - beta2) * gradient**2
            mean, variance = first[name] / (1 - beta1**step), second[name] / (1 - beta2**step)
            shrunk = expected[name] * (1 - rate * (decay if parameter.dim() >= 2 else 0))
            expected[name] = shrunk - rate * mean / (variance.sqrt() + eps)
        optimizer.step()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach(), expected[name], rtol=1e-12, atol=1e-14)
