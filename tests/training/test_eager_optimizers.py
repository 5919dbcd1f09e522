"""`AdamW` updates weights as that of torch does."""

import copy

import torch
from torch import nn

from gpt.training.eager_optimizers import AdamW


def test_updates_and_states_are_those_of_torch() -> None:
    torch.manual_seed(0)
    ours = nn.Linear(3, 5)
    theirs = copy.deepcopy(ours)
    kwargs = {"lr": 0.1, "weight_decay": 0.1, "betas": (0.9, 0.99), "fused": True}
    optimizers = [AdamW(ours.parameters(), **kwargs), torch.optim.AdamW(theirs.parameters(), **kwargs)]
    for _ in range(3):
        x = torch.randn(4, 3)
        for layer, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            layer(x).square().sum().backward()
            optimizer.step()
        assert torch.equal(ours.weight, theirs.weight)
    states = [optimizer.state_dict() for optimizer in optimizers]
    assert states[0]["param_groups"] == states[1]["param_groups"]
    torch.testing.assert_close(states[0]["state"], states[1]["state"], atol=0, rtol=0)
    again = AdamW(ours.parameters(), **kwargs)
    again.load_state_dict(states[1])
    torch.testing.assert_close(again.state_dict()["state"], states[1]["state"], atol=0, rtol=0)
    assert ours.weight.requires_grad
