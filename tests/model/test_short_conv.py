"""The short convolution: its formula, what it can see, and how it starts and is trained."""

import pytest
import torch
from torch import nn

from gpt.cache import KVCache
from gpt.config import OptimConfig
from gpt.model import GPT
from gpt.model.short_conv import ShortConv
from gpt.training.optimizers import build_optimizer
from tiny import sharp_model, tiny_config


def test_it_is_the_convolution_of_torch() -> None:
    conv, x = ShortConv(8, 4), torch.randn(3, 7, 8)
    nn.init.normal_(conv.weight)
    past = nn.functional.pad(x, (0, 0, 3, 0)).transpose(1, 2)
    expected = x + nn.functional.conv1d(past, conv.weight.flip(2), groups=8).transpose(1, 2)
    torch.testing.assert_close(conv(x, None, None), expected)


@torch.inference_mode()
def test_a_model_of_one_block_sees_exactly_the_taps_without_attention() -> None:
    """With attention's output projection at zero, only the convolution reaches back."""
    model = sharp_model(n_layer=1, mlp_conv=3)
    model.h[0].attn.c_proj.weight.zero_()
    idx = torch.randint(1, 23, (1, 9))
    changed = idx.clone()
    changed[0, 4] = 0
    moved = (model(idx) != model(changed)).any(dim=-1)[0]
    assert moved.tolist() == [False] * 4 + [True] * 3 + [False] * 2


@torch.inference_mode()
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_not_seen(side: str) -> None:
    model = sharp_model(mlp_conv=4, position="rope")
    idx, padding = torch.randint(23, (2, 8)), torch.randint(23, (2, 5))
    real, no = torch.ones(2, 8, dtype=torch.bool), torch.zeros(2, 5, dtype=torch.bool)
    parts = [(padding, no), (idx, real)] if side == "left" else [(idx, real), (padding, no)]
    padded, mask = (torch.cat(tensors, dim=1) for tensors in zip(*parts, strict=True))
    torch.testing.assert_close(model(padded, attention_mask=mask)[mask].view(2, 8, -1), model(idx))


@torch.inference_mode()
def test_sequences_of_different_lengths_continue_by_themselves() -> None:
    model, idx = sharp_model(mlp_conv=4), torch.randint(23, (2, 12))
    cache, expected = KVCache(model.config, batch=2), model(idx)
    model(idx[:, :6], cache=cache)
    cache.truncate([1, 6])
    found = model(torch.stack([idx[0, 1:4], idx[1, 6:9]]), cache=cache.select([1, 0]).select([1, 0]))
    torch.testing.assert_close(found, torch.stack([expected[0, 1:4], expected[1, 6:9]]), rtol=1e-5, atol=1e-5)


def test_it_begins_as_the_identity_and_leaves_other_weights_as_they_were() -> None:
    torch.manual_seed(3)
    plain = GPT(tiny_config())
    torch.manual_seed(3)
    convolved = GPT(tiny_config(mlp_conv=4))
    weights = convolved.state_dict()
    assert all(torch.equal(weights[name], weight) for name, weight in plain.state_dict().items())
    idx = torch.randint(23, (2, 9))
    torch.testing.assert_close(convolved(idx), plain(idx))


def test_its_weights_are_no_matrix_for_muon() -> None:
    model = GPT(tiny_config(mlp_conv=4))
    optimizer = build_optimizer(model, OptimConfig(name="muon"), torch.device("cpu")).optimizers["adamw"]
    trained = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    assert {id(block.mlp_conv.weight) for block in model.h} <= trained
