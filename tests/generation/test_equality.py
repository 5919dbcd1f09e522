"""Logits of every runner are those of the whole window without a cache."""

from functools import cache
from random import Random
from typing import Any

import pytest
import torch
from generation.support import LETTERS, random_ids
from hypothesis import given
from hypothesis import strategies as st
from native_support import needs_compiler

import gpt
from gpt.config import SamplingParams
from gpt.generation import Batch
from gpt.generation.runtime import DecodeOptions, Runtime, build_runtime
from gpt.generation.sequence import Window
from gpt.model import GPT
from patience import examples
from tiny import sharp_model
from tolerances import LOGITS
from variants import VARIANTS, draw_model, keys_of

every_backend = pytest.mark.parametrize("kind", ["eager", pytest.param("native", marks=needs_compiler)])


@torch.inference_mode()
def largest_error(runtime: Runtime, prompts: list[list[int]], steps: int, **params: Any) -> float:
    """How far log-probabilities are from the uncached ones, over the deviation of these, while a batch grows."""
    model, rows, errors = runtime.model, [list(prompt) for prompt in prompts], []
    window = Window(model.config.block_size)
    sampling = SamplingParams(max_new_tokens=steps, temperature=1.0, logprobs=model.vocab_size, **params)
    batch = Batch(runtime, prompts, sampling, range(len(prompts)), LETTERS)
    while batch.active:
        for row, chunk in batch.step().items():
            assert chunk.token is not None
            expected = model(torch.tensor([window.of(rows[row])]))[0, -1].float().log_softmax(dim=-1)
            assert expected.std() > 0.05
            found = torch.tensor([logprob for _, logprob in sorted(chunk.token.top)])
            errors.append((found - expected).abs().max() / expected.std())
            rows[row].append(chunk.token.id)
    return float(torch.stack(errors).max())


@every_backend
@pytest.mark.parametrize("changes", [*map(keys_of, VARIANTS)], ids=str)
def test_cached_logits_are_the_uncached_ones_for_every_model(kind: str, changes: dict[str, Any]) -> None:
    runtime = build_runtime(sharp_model(std=0.25, **changes), DecodeOptions(kind))
    assert largest_error(runtime, [random_ids(length) for length in (1, 15, 10)], steps=8) < LOGITS


@every_backend
@pytest.mark.parametrize("seed", range(8))
def test_logits_of_random_models_are_the_uncached_ones_within_and_beyond_the_window(kind: str, seed: int) -> None:
    chance = Random(seed)
    model = draw_model(chance)
    window = model.config.block_size
    prompts = [chance.choices(range(model.vocab_size), k=length) for length in (1, window // 2, window + 3)]
    assert largest_error(build_runtime(model, DecodeOptions(kind)), prompts, steps=8) < LOGITS


@cache
def model_of(position: str) -> GPT:
    return sharp_model(std=0.25, position=position, n_kv_head=2)


@every_backend
@examples(0.1)
@given(
    position=st.sampled_from(["learned", "sinusoidal", "rope"]),
    lengths=st.lists(st.integers(1, 17) | st.sampled_from([5, 40]), min_size=1, max_size=4),
    steps=st.integers(1, 40),
)
def test_logits_are_the_uncached_ones_while_windows_slide_and_rows_leave(
    kind: str, position: str, lengths: list[int], steps: int
) -> None:
    prompts, runtime = (
        [random_ids(length) for length in lengths],
        build_runtime(model_of(position), DecodeOptions(kind)),
    )
    assert largest_error(runtime, prompts, steps, stop=("a", "bc")) < LOGITS


@pytest.mark.parametrize(
    ("kind", "kv_dtype", "tolerance"),
    [
        ("eager", "bf16", 0.02),
        ("eager", "fp16", 0.003),
        pytest.param("native", "bf16", 0.02, marks=needs_compiler),
        pytest.param("native", "int8", 0.04, marks=needs_compiler),
    ],
)
def test_a_smaller_cache_changes_the_logits_by_its_rounding_only(kind: str, kv_dtype: str, tolerance: float) -> None:
    runtime = build_runtime(sharp_model(std=0.25), DecodeOptions(kind, kv_dtype))
    assert tolerance / 10 < largest_error(runtime, [random_ids(5)], 40) < 3 * tolerance


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rope"])
@pytest.mark.parametrize("kv_dtype", ["bf16", "fp32"])
def test_a_model_in_bfloat16_gives_the_same_logits_with_and_without_a_cache(position: str, kv_dtype: str) -> None:
    model = sharp_model(std=0.25, position=position, n_kv_head=2).to(torch.bfloat16)
    assert largest_error(build_runtime(model, DecodeOptions("eager", kv_dtype)), [random_ids(1)], 39) < 0.1


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("backend", ["auto", "eager"])
def test_a_text_is_the_same_streamed_batched_and_alone(backend: str, temperature: float) -> None:
    model = sharp_model(std=0.25, position="rope", n_kv_head=2, tie_weights=False)
    prompts, runtime = ["abc", "v", "", "hjklmnopqrstu"], build_runtime(model, DecodeOptions(backend))
    options = {"runtime": runtime, "max_new_tokens": 30, "temperature": temperature, "top_p": 0.95, "seed": 3}
    texts = gpt.generate(model, LETTERS, prompts, **options)
    streamed = [list(gpt.stream(model, LETTERS, prompt, **options)) for prompt in prompts]
    assert texts == ["".join(pieces) for pieces in streamed]
    assert all(map(all, streamed))
    assert texts == [gpt.generate(model, LETTERS, prompt or "\n", **options) for prompt in prompts]
    assert len(set(texts)) == 4
    assert all(len(text) == 30 for text in texts)
