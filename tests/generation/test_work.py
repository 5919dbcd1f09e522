"""How many positions go through the model, counted at its first block."""

from typing import Any

import pytest
from generation.support import complete
from native_support import needs_compiler
from torch import Tensor

from gpt.config import SamplingParams
from gpt.generation import Batch, generate_tokens
from gpt.generation.runtime import DecodeOptions, build_runtime
from gpt.kernels.decoding.engine import Engine
from gpt.model import GPT
from tiny import tiny_config


def count_calls(model: GPT) -> list[tuple[int, int]]:
    """A list that grows by the batch and the time of every call."""
    calls: list[tuple[int, int]] = []

    def count(_: object, arguments: tuple[Tensor, ...], __: object) -> None:
        calls.append((arguments[0].size(0), arguments[0].size(1)))

    model.h[0].register_forward_hook(count)
    return calls


def eager_batch(model: GPT, prompts: list[list[int]]) -> Batch:
    runtime = build_runtime(model, DecodeOptions("eager"))
    return Batch(runtime, prompts, SamplingParams(), seeds=range(len(prompts)))


def positions(calls: list[tuple[int, int]]) -> int:
    return sum(batch * time for batch, time in calls)


@pytest.mark.parametrize(("prompt", "new"), [(1, 1), (1, 15), (7, 9), (15, 1)])
def test_a_text_that_fits_the_window_costs_each_position_once(prompt: int, new: int) -> None:
    model = GPT(tiny_config()).eval()
    calls = count_calls(model)
    batch = eager_batch(model, [[1] * prompt])
    for _ in range(new):
        batch.step()
    assert positions(calls) == prompt + new - 1


def test_equal_prompts_are_computed_once(tiny_model: GPT) -> None:
    calls = count_calls(tiny_model)
    eager_batch(tiny_model, [[1] * 5, [2] * 9, [1] * 5]).step()
    assert calls == [(1, 9), (1, 4), (1, 1), (2, 1)]  # the two share all but their last tokens


def test_past_the_edge_a_window_is_computed_once_per_slide() -> None:
    model, new = GPT(tiny_config(n_layer=1)).eval(), 100
    calls = count_calls(model)
    params = SamplingParams(max_new_tokens=new)
    assert len(list(generate_tokens(model, [1] * 16, params))) == new
    slides = -(-(new - 1) // 4)
    assert positions(calls) <= 16 * (slides + 1)
    assert sum(time > 1 for _, time in calls) <= slides + 1


def test_only_the_rows_whose_window_moved_are_computed_anew(tiny_model: GPT) -> None:
    calls = count_calls(tiny_model)
    batch = eager_batch(tiny_model, [[1] * 16, [2] * 4, [3] * 2])
    batch.step()
    calls.clear()
    batch.step()
    assert calls == [(1, 13), (2, 1)]


def test_rows_that_have_ended_cost_nothing_more(tiny_model: GPT) -> None:
    seeds, params = range(8), SamplingParams(max_new_tokens=12, stop=("a", "b", "c", "d"), temperature=1.0)
    calls = count_calls(tiny_model)
    lengths = [len(row.tokens) for row in complete(tiny_model, ["hi"] * 8, params, seeds)]
    assert len(set(lengths)) > 2
    assert calls == [(1, 1)] + [(sum(length >= step for length in lengths), 1) for step in range(1, max(lengths) + 1)]


def test_no_new_tokens_are_no_work(tiny_model: GPT) -> None:
    calls = count_calls(tiny_model)
    (completion,) = complete(tiny_model, ["hi"], SamplingParams(max_new_tokens=0))
    assert (completion.text, completion.tokens, completion.finish) == ("", [], "length")
    assert calls == []


@needs_compiler
def test_the_engine_computes_each_position_once_and_past_the_edge_a_window_per_slide(
    monkeypatch: pytest.MonkeyPatch, tiny_model: GPT
) -> None:
    computed: list[int] = []
    step, generate = Engine.step, Engine.generate

    def watched_step(engine: Engine, tokens: list[int], *arguments: Any) -> list[int]:
        computed.append(len(tokens))
        return step(engine, tokens, *arguments)

    def watched_generate(engine: Engine, rows: Any, tokens: Any, positions: Any, uniforms: Tensor, *rest: Any) -> Any:
        computed.append(uniforms.numel())
        return generate(engine, rows, tokens, positions, uniforms, *rest)

    monkeypatch.setattr(Engine, "step", watched_step)
    monkeypatch.setattr(Engine, "generate", watched_generate)
    runtime = build_runtime(tiny_model, DecodeOptions("native"))
    assert len(list(generate_tokens(tiny_model, [1] * 7, SamplingParams(max_new_tokens=9), runtime))) == 9
    assert sum(computed) == 7 + 9 - 1
    computed.clear()
    params = SamplingParams(max_new_tokens=101)
    assert len(list(generate_tokens(tiny_model, range(16), params, runtime))) == 101
    # each of 25 slides leaves 12 tokens to compute anew, and the newest
    assert sum(computed) == 15 + 101 + 25 * 12
    computed.clear()
    Batch(runtime, [[3] * 9] * 64, SamplingParams(max_new_tokens=1), range(64)).step()
    assert computed == [8, 64]
