"""What is seen inside a model on the device is what is seen on the CPU."""

import pytest
import torch

import gpt
from gpt.inspection.views.attention import attention_patterns
from gpt.inspection.views.lens import logit_lens
from gpt.inspection.views.surprisal import surprisal
from tiny import sharp_model

IDX = torch.arange(12) % 23


@pytest.mark.parametrize("changes", [{}, {"position": "rope", "n_kv_head": 2, "norm": "rmsnorm", "mlp": "swiglu"}])
def test_every_activation_is_that_of_the_cpu(device: torch.device, changes: dict[str, object]) -> None:
    model = sharp_model(0.1, **changes)
    edits = {"blocks.0.attn.hook_z": gpt.edits.zero(head=1)}
    _, expected = gpt.run_with_cache(model, IDX[None], edits=edits)
    _, cache = gpt.run_with_cache(model.to(device), IDX[None].to(device), edits=edits)
    assert list(cache) == list(expected)
    for name, activation in cache.items():
        assert activation.device.type == device.type
        torch.testing.assert_close(activation.cpu(), expected[name], atol=1e-4, rtol=1e-4)


def test_lens_attention_and_surprisal_are_those_of_the_cpu(device: torch.device) -> None:
    def views(place: torch.device) -> list[torch.Tensor]:
        model, idx = sharp_model(0.1).to(place), IDX.to(place)
        seen = surprisal(model, idx)
        return [logit_lens(model, idx[None]), attention_patterns(model, idx), seen.bits, seen.after]

    for one, other in zip(views(torch.device("cpu")), views(device), strict=True):
        torch.testing.assert_close(other.detach().cpu(), one.detach(), atol=1e-4, rtol=1e-4)
