"""The engine runs what a configuration builds, and refuses anything else."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gpt.kernels.decoding.weights import check_native_support, lay_out_weights
from gpt.model import GPT
from gpt.model.quantized import NAMES, quantize
from gpt.system.errors import DeviceError
from tiny import sharp_model

COVERS = "the native backend does not cover "
CHANGES: list[tuple[Callable[[Any], object], str]] = [
    (lambda model: setattr(model, "h", model.h[:1]), "a model without h.1"),
    (lambda model: setattr(model, "lm_head", nn.Linear(32, 40, bias=False)), "the shapes of lm_head"),
    (lambda model: setattr(model.ln_f, "eps", 99.0), "ln_f.eps, which was changed"),
    (lambda model: setattr(model, "drop", nn.Identity()), "modules of class Identity"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES, ids=[message for _, message in CHANGES])
def test_a_model_that_is_not_what_its_configuration_builds_is_refused(
    change: Callable[[GPT], None], message: str
) -> None:
    model = sharp_model()
    check_native_support(model)
    change(model)
    with pytest.raises(DeviceError) as caught:
        check_native_support(model)
    assert str(caught.value) == COVERS + message


def test_queries_keys_and_values_are_in_one_format() -> None:
    model = sharp_model()
    model.h[0].attn.c_q = quantize(model, "int8").h[0].attn.c_q
    with pytest.raises(DeviceError, match="needs queries, keys and values in the same format"):
        lay_out_weights(model)


@pytest.mark.parametrize("weights", NAMES)
def test_quantized_models_are_what_their_configuration_builds(weights: str) -> None:
    model = quantize(sharp_model(n_kv_head=2, bias=True), weights)
    check_native_support(model)
    assert len(lay_out_weights(model).layers) == 2


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

    with pytest.raises(DeviceError, match="does not cover modules of class Mine"):
        check_native_support(Mine(sharp_model().config).eval())
