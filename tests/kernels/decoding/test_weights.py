"""The engine runs what a configuration builds, and refuses anything else."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gpt.errors import DeviceError
from gpt.kernels.decoding.weights import lay_out_weights
from gpt.model import GPT
from gpt.model.quantized import NAMES, quantize
from tiny import sharp_model

DIFFERS = "the model differs from its configuration in "
UNKNOWN = "the native backend does not know what "
CHANGES: list[tuple[Callable[[Any], object], str]] = [
    (lambda model: setattr(model, "h", model.h[:1]), DIFFERS + "h.1"),
    (lambda model: setattr(model, "lm_head", nn.Linear(32, 40, bias=False)), DIFFERS + "lm_head"),
    (lambda model: setattr(model.h[1].mlp, "c_fc", nn.Linear(32, 200)), DIFFERS + "h.1.mlp.c_fc"),
    (lambda model: setattr(model.h[0].mlp, "activation", torch.relu), DIFFERS + "h.0.mlp"),
    (lambda model: setattr(model.softcap, "cap", 99.0), DIFFERS + "softcap"),
    (lambda model: setattr(model, "softcap", nn.Identity()), UNKNOWN + "Identity computes"),
    (lambda model: setattr(model.lm_head, "forward", lambda x: x), UNKNOWN + "Linear computes"),
    (
        lambda model: model.h[0].register_forward_hook(lambda *_: None),
        "the native backend does not call hooks, and the model has some",
    ),
    (
        lambda model: setattr(model.h[0].attn, "c_q", quantize(model, "int8").h[0].attn.c_q),
        "the native backend needs queries, keys and values in the same format",
    ),
]


@pytest.mark.parametrize(("change", "message"), CHANGES, ids=[message for _, message in CHANGES])
def test_a_model_that_is_not_what_its_configuration_builds_is_refused(
    change: Callable[[GPT], None], message: str
) -> None:
    model = sharp_model(logit_softcap=3.0)
    lay_out_weights(model)
    change(model)
    with pytest.raises(DeviceError) as caught:
        lay_out_weights(model)
    assert str(caught.value) == message


@pytest.mark.parametrize("weights", NAMES)
def test_quantized_models_are_what_their_configuration_builds(weights: str) -> None:
    assert len(lay_out_weights(quantize(sharp_model(n_kv_head=2, bias=True), weights)).layers) == 2


def test_changes_of_the_model_afterwards_do_not_reach_the_engine() -> None:
    model = sharp_model(position="learned")
    tensors = lay_out_weights(model).tensors
    before = [tensor.clone() for tensor in tensors]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert all(map(torch.equal, tensors, before))


def test_a_model_of_a_class_of_its_own_is_refused() -> None:
    class Mine(GPT):
        def forward(self, idx: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(idx) * 2

    with pytest.raises(DeviceError, match="does not know what Mine computes"):
        lay_out_weights(Mine(sharp_model().config).eval())
