from functools import cache
from typing import Any

import pytest
import torch
from generation.support import LETTERS, random_ids
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_support import needs_compiler
from torch import Tensor

import gpt
from gpt.cache import KVCache, stores
from gpt.config import SamplingParams
from gpt.generation.backends import Backend
from gpt.generation.backends.compiled import CompiledBackend
from gpt.generation.backends.eager import CachedBackend, UncachedBackend, pad
from gpt.generation.backends.selection import DecodeOptions, build_runtime
from gpt.model import GPT
from tiny import sharp_model
from tolerances import LOGITS
from variants import VARIANTS, keys_of

every_position = pytest.mark.parametrize("position", ["learned", "sinusoidal", "rope"])


def build(kind: str, model: GPT, slide_chunk: int | None = None, prefill_chunk: int | None = None) -> Backend:
    """A backend with an fp32 cache."""
    runtime = build_runtime(model, DecodeOptions(kind, prefill_chunk=prefill_chunk))
    return runtime.backend(SamplingParams(slide_chunk=slide_chunk))


@torch.inference_mode()
def grow(backend: Backend, uncached: UncachedBackend, rows: list[list[int]], steps: int) -> None:
    """Both give the same logits while every row grows by some tokens."""
    for _ in range(steps):
        expected = uncached.next_logits(rows)
        torch.testing.assert_close(backend.next_logits(rows), expected, rtol=1e-5, atol=LOGITS)
        assert (expected.std(dim=-1) > 0.3).all()
        for row in rows:
            row += random_ids(1)


@pytest.fixture
def _not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes are what is tested here, so that the compiler is left out."""
    monkeypatch.setattr(torch, "compile", lambda step, dynamic: step)


@pytest.mark.parametrize("kind", ["eager", pytest.param("native", marks=needs_compiler)])
@pytest.mark.parametrize("changes", map(keys_of, VARIANTS), ids=str)
def test_cached_logits_are_the_uncached_ones_for_every_model(kind: str, changes: dict[str, Any]) -> None:
    model = sharp_model(std=0.25, **changes)
    grow(build(kind, model), UncachedBackend(model), [random_ids(length) for length in (1, 15, 10)], steps=8)


@cache
def model_of(position: str) -> GPT:
    return sharp_model(std=0.25, position=position, n_kv_head=2)


@pytest.mark.usefixtures("_not_compiled")
@pytest.mark.parametrize("kind", ["eager", "compiled", pytest.param("native", marks=needs_compiler)])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    position=st.sampled_from(["learned", "sinusoidal", "rope"]),
    chunks=st.tuples(st.sampled_from([None, 1, 5, 16, 99]), st.sampled_from([None, 1, 3])),
    lengths=st.lists(st.integers(1, 17) | st.sampled_from([5, 40]), min_size=1, max_size=4),
    steps=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    data=st.data(),
)
def test_logits_are_the_uncached_ones_while_windows_slide_and_rows_leave_or_multiply(
    kind: str,
    position: str,
    chunks: tuple[int | None, int | None],
    lengths: list[int],
    steps: list[int],
    data: st.DataObject,
) -> None:
    model = model_of(position)
    backend, uncached = build(kind, model, *chunks), UncachedBackend(model, chunks[0])
    rows = [random_ids(length) for length in lengths]
    for count in steps:
        grow(backend, uncached, rows, count)
        chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=5))
        with torch.inference_mode():
            backend.select(chosen)
        rows = [list(rows[row]) for row in chosen]
    grow(backend, uncached, rows, 2)


@pytest.mark.usefixtures("_not_compiled")
@torch.inference_mode()
def test_steps_of_a_compiled_backend_have_one_shape() -> None:
    model, shapes = sharp_model(std=0.25, n_kv_head=2, qk_norm=True), set[tuple[torch.Size, ...]]()
    backend = CompiledBackend(model)
    for core in (block.attn.core for block in model.h):  # type: ignore[union-attr]
        core.register_forward_pre_hook(lambda _, inputs: shapes.add(tuple(x.shape for x in inputs)))  # type: ignore[union-attr, arg-type]
    backend.next_logits([[1], [2]])
    shapes.clear()
    for length in range(2, 14):
        backend.next_logits([[1] * length, [2] * length])
    assert len(shapes) == 1


@pytest.mark.parametrize(("kv_dtype", "tolerance"), [("bf16", 0.02), ("fp16", 0.003), ("int8", 0.04)])
def test_a_smaller_cache_changes_the_logits_by_its_rounding_only(kv_dtype: str, tolerance: float) -> None:
    model = sharp_model(std=0.25)
    cached, uncached = CachedBackend(model, kv_dtype=kv_dtype), UncachedBackend(model)
    text = random_ids(40)
    with torch.inference_mode():
        for length in range(5, 40):
            expected = uncached.next_logits([text[:length]])
            error = (cached.next_logits([text[:length]]) - expected).abs().max()
            assert error < tolerance * expected.abs().max()


@every_position
@pytest.mark.parametrize("kv_dtype", ["bf16", "fp32"])
def test_a_model_in_bfloat16_gives_the_same_logits_with_and_without_a_cache(position: str, kv_dtype: str) -> None:
    model = sharp_model(std=0.25, position=position, n_kv_head=2).to(torch.bfloat16)
    cached, uncached, text = CachedBackend(model, kv_dtype=kv_dtype), UncachedBackend(model), random_ids(40)
    with torch.inference_mode():
        found = torch.cat([cached.next_logits([text[:length]]) for length in range(1, 40)])
        expected = torch.cat([uncached.next_logits([text[:length]]) for length in range(1, 40)])
    assert (found - expected).norm() < 0.01 * expected.norm()


@every_position
@torch.inference_mode()
def test_rows_of_different_lengths_are_filled_padded_and_truncated_and_then_go_on(position: str) -> None:
    model, lengths = sharp_model(std=0.25, position=position, n_kv_head=2), [11, 0, 4]
    texts = [random_ids(length + 5) for length in lengths]
    cache = KVCache(model.config, batch=3)
    model(pad([text[:length] for text, length in zip(texts, lengths, strict=True)], torch.device("cpu")), cache=cache)
    cache.truncate(lengths)
    more = torch.tensor([text[length:] for text, length in zip(texts, lengths, strict=True)])
    logits: Tensor = torch.cat([model(piece, cache=cache) for piece in more.split((3, 1, 1), dim=1)], dim=1)
    for row, text in enumerate(texts):
        torch.testing.assert_close(logits[row], model(torch.tensor([text]))[0, -5:], rtol=1e-5, atol=LOGITS)


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


@needs_compiler
def test_an_8_bit_cache_of_the_engine_rounds_as_pytorchs_with_its_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
        scales = x.abs().amax(dim=-1, keepdim=True).float() / 127
        inverse = torch.where(scales > 0, 1 / scales, 0.0)
        return (x.float() * inverse).round().clamp(-127, 127).to(torch.int8), scales

    monkeypatch.setitem(stores.KV_DTYPES, "fp16", torch.float32)  # of scales, as in C
    monkeypatch.setattr(stores, "_quantize", quantize)
    model, text = sharp_model(std=0.25), random_ids(16)
    native, eager = (
        build_runtime(model, DecodeOptions(name, kv_dtype="int8")).backend(SamplingParams())
        for name in ("native", "eager")
    )
    with torch.inference_mode():
        for end in range(5, 17):
            one, other = native.next_logits([text[:end]]), eager.next_logits([text[:end]])
            assert (one - other).abs().max() < 1e-4 * other.std()
