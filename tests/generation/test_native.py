import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from native_support import needs_compiler

from gpt.config import SamplingParams
from gpt.generation import generate_tokens
from gpt.generation.native_runner import prepare
from gpt.generation.runtime import DecodeOptions, build_runtime
from gpt.model import GPT
from gpt.system.environment import read_settings
from gpt.system.progress import silent
from tiny import tiny_config

pytestmark = needs_compiler


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
def test_weights_changed_in_any_way_are_decoded(tiny_model: GPT, change: Callable[[Any], object]) -> None:
    params = SamplingParams(max_new_tokens=20)
    list(generate_tokens(tiny_model, [1], params))
    change(tiny_model)
    expected = list(generate_tokens(copy.deepcopy(tiny_model), [1], params))
    assert list(generate_tokens(tiny_model, [1], params)) == expected


def test_a_model_is_freed_with_its_last_reference() -> None:
    model = GPT(tiny_config()).eval()
    prepare(model, read_settings(), silent)
    reference = weakref.ref(model)
    gc.disable()
    try:
        del model
        assert reference() is None
    finally:
        gc.enable()


def test_a_pass_has_room_for_the_prompt_tokens_of_a_step() -> None:
    """Of more tokens than it has room for, every weight would be read once more."""
    runner = build_runtime(GPT(tiny_config()).eval(), DecodeOptions("native")).runner(4, 1000)
    assert runner._engine.max_tokens >= 1000  # type: ignore[attr-defined]
