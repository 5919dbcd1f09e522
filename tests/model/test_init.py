import math

import pytest
import torch

from gpt.model import GPT
from tiny import tiny_config

KINDS = [{"mlp": "gelu"}, {"mlp": "swiglu", "norm": "rmsnorm", "position": "rope", "qk_norm": True}]


@pytest.mark.parametrize("tie_weights", [True, False])
@pytest.mark.parametrize("n_layer", [1, 3])
@pytest.mark.parametrize("kind", KINDS, ids=["gpt2", "llama"])
def test_weights_have_gpt2s_deviations_biases_are_zero_and_gains_one(
    kind: dict[str, object], n_layer: int, tie_weights: bool
) -> None:
    wide = {
        "n_layer": n_layer,
        "n_embd": 128,
        "vocab_size": 150,
        "block_size": 100,
        "bias": True,
        "tie_weights": tie_weights,
    }
    model = GPT(tiny_config(**wide, **kind))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif parameter.dim() == 1:
            assert (parameter == 1).all(), name
        else:
            deviation = 0.02 / math.sqrt(2 * n_layer) if "c_proj" in name else 0.02
            assert parameter.std().item() == pytest.approx(deviation, rel=0.05), name
            assert abs(parameter.mean().item()) < 0.05 * deviation, name


def test_the_seed_decides_the_weights() -> None:
    one, same, other = (torch.manual_seed(seed) and GPT(tiny_config()).wte.weight for seed in (5, 5, 6))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
