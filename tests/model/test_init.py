import math

import pytest
import torch
import torch.nn.functional as F

from gpt.model import GPT
from tiny import tiny_config

KINDS = [{"mlp": "gelu"}, {"mlp": "swiglu", "norm": "rmsnorm", "position": "rope", "qk_norm": True}]


@pytest.mark.parametrize("tie_weights", [True, False])
@pytest.mark.parametrize("kind", KINDS, ids=["gpt2", "llama"])
def test_weights_have_gpt2s_deviations_biases_are_zero_and_gains_one(
    kind: dict[str, object], tie_weights: bool
) -> None:
    wide = {"n_layer": 3, "n_embd": 128, "vocab_size": 150, "block_size": 100, "bias": True, "tie_weights": tie_weights}
    model = GPT(tiny_config(**wide, **kind))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif parameter.dim() == 1:
            assert (parameter == 1).all(), name
        else:
            deviation = 0.02 / math.sqrt(6) if "c_proj" in name else 0.02
            assert parameter.std().item() == pytest.approx(deviation, rel=0.05), name
            assert abs(parameter.mean().item()) < 0.05 * deviation, name


@pytest.mark.parametrize("n_layer", [1, 2, 8])
def test_projections_into_the_residual_stream_shrink_with_depth(n_layer: int) -> None:
    model = GPT(tiny_config(n_layer=n_layer, n_embd=128))
    for block in model.h:
        for projection in (block.attn.c_proj, block.mlp.c_proj):
            assert projection.weight.std().item() == pytest.approx(0.02 / math.sqrt(2 * n_layer), rel=0.05)


@pytest.mark.parametrize("tie_weights", [True, False])
@pytest.mark.parametrize("kind", KINDS, ids=["gpt2", "llama"])
@pytest.mark.parametrize("vocab_size", [23, 1000])
def test_an_untrained_model_guesses_evenly(kind: dict[str, object], tie_weights: bool, vocab_size: int) -> None:
    model = GPT(tiny_config(vocab_size=vocab_size, tie_weights=tie_weights, **kind))
    logits = model(torch.randint(vocab_size, (16, 16)))
    loss = F.cross_entropy(logits.flatten(0, 1), torch.randint(vocab_size, (256,)))
    assert loss.item() == pytest.approx(math.log(vocab_size), abs=0.05)


def seeded(seed: int) -> GPT:
    torch.manual_seed(seed)
    return GPT(tiny_config())


def test_the_seed_decides_the_weights() -> None:
    first, second, third = (seeded(seed) for seed in (5, 5, 6))
    for one, same, other in zip(first.parameters(), second.parameters(), third.parameters(), strict=True):
        assert torch.equal(one, same)
        assert one.dim() == 1 or not torch.equal(one, other)
