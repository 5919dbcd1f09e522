"""What the device must refuse; `test_boundary.py` has a process run this, which has the device."""

import pytest
import torch

from gpt.model import GPT, attention
from tiny import tiny_config


def test_a_mask_on_the_cpu_is_refused(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    made = attention.causal_mask
    monkeypatch.setattr(attention, "causal_mask", lambda queries, keys, _: made(queries, keys, torch.device("cpu")))
    model, idx = GPT(tiny_config(attention="reference")).to(device), torch.arange(5).view(1, 5).to(device)
    with pytest.raises(RuntimeError, match=r"on the CPU and on the device|same device"):
        model(idx)


def test_numbers_are_not_read_in_passing(device: torch.device) -> None:
    with pytest.raises(TypeError, match="can't convert boundary:0 device type tensor to numpy"):
        torch.ones(2, device=device).numpy()
