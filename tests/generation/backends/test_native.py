import copy
import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from native_support import needs_compiler

from gpt.config import SamplingParams
from gpt.environment import read_settings
from gpt.errors import DeviceError
from gpt.generation import generate_tokens
from gpt.generation.backends.native import Prepared, prepare
from gpt.model import GPT
from gpt.model.quantized import quantize
from gpt.progress import silent
from tiny import tiny_config

pytestmark = needs_compiler


def prepared(model: GPT) -> Prepared:
    return prepare(model, read_settings(), silent)


def test_what_was_prepared_is_kept_as_long_as_nothing_changes(tiny_model: GPT) -> None:
    kept = prepared(tiny_model)
    tiny_model.train()
    tiny_model.eval()
    assert prepared(tiny_model) is kept
    assert prepared(copy.deepcopy(tiny_model)) is not kept


def swap_rows(model: Any) -> None:
    weight = model.h[1].mlp.c_fc.weight
    weight.data[[0, 1]] = weight.data[[1, 0]]


CHANGES: dict[str, Callable[[Any], object]] = {
    "rows": swap_rows,
    "by NumPy": lambda model: model.ln_f.weight.detach().numpy().__setitem__(3, 1 + 1e-6),
    "a table": lambda model: model.wpe.weight.data.mul_(1.0001),
    "a buffer": lambda model: model.register_buffer("scalar", torch.tensor(1.0)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_weights_changed_in_any_way_are_laid_out_anew(tiny_model: GPT, change: Callable[[Any], object]) -> None:
    kept, params = prepared(tiny_model), SamplingParams(max_new_tokens=20)
    change(tiny_model)
    assert prepared(tiny_model) is not kept
    expected = list(generate_tokens(copy.deepcopy(tiny_model), [1], params))
    assert list(generate_tokens(tiny_model, [1], params)) == expected


def test_a_model_that_is_no_longer_supported_is_refused_though_it_was_prepared(tiny_model: GPT) -> None:
    prepared(tiny_model)
    tiny_model.h[0].register_forward_hook(lambda *_: None)
    with pytest.raises(DeviceError, match="does not call hooks"):
        prepared(tiny_model)


def test_other_formats_and_processors_are_prepared_separately(tiny_model: GPT) -> None:
    kept = prepared(tiny_model)
    assert prepared(quantize(tiny_model, "bf16")).weights.model.head.kind == kept.weights.model.head.kind
    assert prepare(tiny_model, replace(read_settings(), processor="generic"), silent) is not kept


def test_a_model_is_freed_with_its_last_reference() -> None:
    model = GPT(tiny_config()).eval()
    prepared(model)
    reference = weakref.ref(model)
    gc.disable()
    try:
        del model
        assert reference() is None
    finally:
        gc.enable()


def test_weights_are_not_laid_out_for_every_call(tiny_model: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(max_new_tokens=1)
    first = list(generate_tokens(tiny_model, [1], params))
    monkeypatch.setattr("gpt.generation.backends.native.lay_out_weights", lambda *_: pytest.fail("laid out again"))
    assert list(generate_tokens(tiny_model, [1], params)) == first
