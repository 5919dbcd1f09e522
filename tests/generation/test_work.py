"""How many positions go through the model, or a call of the native engine, and which weights they
meet.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from generation.support import complete
from native_support import needs_compiler

from gpt.config import SamplingParams
from gpt.generation.batch import Batch
from gpt.generation.generator import generate_tokens
from gpt.generation.runtime import DecodeOptions, build_runtime
from gpt.model import GPT


@pytest.fixture
def calls(tiny_model: GPT) -> list[tuple[int, ...]]:
    """The batch and the time of every call of the tiny model, which is run in PyTorch for that."""
    calls: list[tuple[int, ...]] = []
    tiny_model.h[0].register_forward_hook(
        lambda _, inputs, __: calls.append(tuple(inputs[0].shape[:2]))
    )
    return calls


@pytest.mark.parametrize(
    ("prompts", "steps", "expected"),
    [
        ([[1] * 7], 10, [(1, 7)] + [(1, 1)] * 9),  # each position once
        # Where the window is full, each slide computes it again.
        (
            [[1] * 16],
            10,
            [(1, 16)] + ([(1, 13)] + [(1, 1)] * 3) * 2 + [(1, 13)],
        ),
        # Equal prompts share all but the last token.
        (
            [[1] * 5, [2] * 9, [1] * 5],
            1,
            [(1, 9), (1, 4), (1, 1), (2, 1)],
        ),
        # Of several prompts, only the one whose window slides is computed again.
        (
            [[1] * 16, [2] * 4, [3] * 2],
            2,
            [(1, 16), (1, 4), (1, 2), (1, 13), (2, 1)],
        ),
    ],
)
def test_positions_are_computed_once_until_the_window_moves(
    tiny_model: GPT,
    calls: list[tuple[int, ...]],
    prompts: list[list[int]],
    steps: int,
    expected: list[tuple[int, int]],
) -> None:
    runtime = build_runtime(tiny_model, DecodeOptions("eager"))
    batch = Batch(runtime, prompts, SamplingParams(), seeds=range(len(prompts)))
    for _ in range(steps):
        batch.step()
    assert calls == expected


def test_rows_that_have_ended_cost_nothing_more(
    tiny_model: GPT, calls: list[tuple[int, ...]]
) -> None:
    params = SamplingParams(max_new_tokens=12, stop=("a", "b", "c", "d"), temperature=1.0)
    lengths = [len(row.tokens) for row in complete(tiny_model, ["hi"] * 8, params, range(8))]
    assert len(set(lengths)) > 2
    assert calls == [(1, 1)] + [
        (sum(length >= step for length in lengths), 1) for step in range(1, max(lengths) + 1)
    ]


def swap_rows(model: Any) -> None:
    weight = model.h[1].mlp.c_fc.weight
    weight.data[[0, 1]] = weight.data[[1, 0]]


CHANGES: dict[str, Callable[[Any], object]] = {
    "rows": swap_rows,
    "by NumPy": lambda model: model.ln_f.weight.detach().numpy().__setitem__(3, 1 + 1e-6),
    "all": lambda model: model.lm_head.weight.data.mul_(-1),
    "a buffer": lambda model: model.register_buffer("scalar", torch.tensor(1.0)),
}


@needs_compiler
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_runtime_keeps_the_weights_of_its_moment(
    tiny_model: GPT, change: Callable[[Any], object]
) -> None:
    params = SamplingParams(max_new_tokens=20)
    runtime = build_runtime(tiny_model)
    before = list(generate_tokens(tiny_model, [1], params))
    change(tiny_model)
    expected = list(generate_tokens(copy.deepcopy(tiny_model), [1], params))
    assert list(generate_tokens(tiny_model, [1], params)) == expected
    assert list(generate_tokens(tiny_model, [1], params, runtime)) == before
