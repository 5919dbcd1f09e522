"""The engine runs what a configuration builds, and refuses anything else."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from gpt.errors import DeviceError
from gpt.kernels.decoding.weights import lay_out_weights
from gpt.model import GPT
from gpt.model.quantized import NAMES, quantize
from tiny import sharp_model


def fewer_blocks(model: GPT) -> None:
    model.h = model.h[:1]


def wider_head(model: GPT) -> None:
    model.lm_head = nn.Linear(32, 40, bias=False)


def wider_hidden_layer(model: GPT) -> None:
    model.h[1].mlp.c_fc = nn.Linear(32, 200)  # type: ignore[union-attr]


def another_activation(model: GPT) -> None:
    model.h[0].mlp.activation = torch.relu  # type: ignore[union-attr, assignment]


def another_cap(model: GPT) -> None:
    model.softcap.cap = 99.0  # type: ignore[assignment]


def no_cap(model: GPT) -> None:
    model.softcap = nn.Identity()


def forward_of_its_own(model: GPT) -> None:
    model.lm_head.forward = lambda x: x  # type: ignore[method-assign, assignment]


def hook(model: GPT) -> None:
    model.h[0].register_forward_hook(lambda *_: None)


def half_quantized(model: GPT) -> None:
    model.h[0].attn.c_q = quantize(model, "int8").h[0].attn.c_q  # type: ignore[union-attr]


CHANGES: list[tuple[Callable[[GPT], None], str]] = [
    (fewer_blocks, "the model differs from its configuration in h.1"),
    (wider_head, "the model differs from its configuration in lm_head"),
    (wider_hidden_layer, "the model differs from its configuration in h.1.mlp.c_fc"),
    (another_activation, "the model differs from its configuration in h.0.mlp"),
    (another_cap, "the model differs from its configuration in softcap"),
    (no_cap, "the native backend does not know what Identity computes"),
    (forward_of_its_own, "the native backend does not know what Linear computes"),
    (hook, "the native backend does not call hooks, and the model has some"),
    (half_quantized, "the native backend needs queries, keys and values in the same format"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES, ids=lambda value: getattr(value, "__name__", ""))
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
    weights = lay_out_weights(model)
    assert weights.positions is not None
    before = weights.positions.clone(), weights.layers[0].up.weights.clone()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert torch.equal(weights.positions, before[0])
    assert torch.equal(weights.layers[0].up.weights, before[1])


def test_a_model_of_a_class_of_its_own_is_refused() -> None:
    class Mine(GPT):
        def forward(self, idx: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(idx) * 2

    with pytest.raises(DeviceError, match="does not know what Mine computes"):
        lay_out_weights(Mine(sharp_model().config).eval())
