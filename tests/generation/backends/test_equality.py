from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from native_support import needs_compiler
from torch import Tensor

import gpt
from gpt.cache import KVCache, stores
from gpt.config import SamplingParams
from gpt.data import CharTokenizer
from gpt.generation import DecodeOptions, build_runtime, complete, generate_tokens
from gpt.generation.backends import Backend
from gpt.generation.backends.compiled import CompiledBackend
from gpt.generation.backends.eager import CachedBackend, UncachedBackend, pad
from gpt.model import GPT
from tiny import CORPUS, sharp_model, tiny_config
from tolerances import LOGITS
from variants import VARIANTS, keys_of, name_of

LETTERS = CharTokenizer("\nabcdefghijklmnopqrstuv")  # 23 ids
POSITIONS = ("learned", "sinusoidal", "rope")
NORMS = ("layernorm", "rmsnorm")
MLPS = ("gelu", "gelu_tanh", "relu", "relu2", "swiglu")
OPTIONS = [
    DecodeOptions(),
    DecodeOptions("eager"),
    DecodeOptions("eager", prefill_chunk=3),
    DecodeOptions("eager", cache=False),
]
every_backend = pytest.mark.parametrize("kind", ["cached", pytest.param("native", marks=needs_compiler)])
every_position = pytest.mark.parametrize("position", POSITIONS)


def random_ids(length: int) -> list[int]:
    return torch.randint(23, (length,)).tolist()


def build(kind: str, model: GPT, slide_chunk: int | None = None, prefill_chunk: int | None = None) -> Backend:
    """A backend with an fp32 cache."""
    runtime = build_runtime(
        model, DecodeOptions("native" if kind == "native" else "eager", prefill_chunk=prefill_chunk)
    )
    return runtime.backend(SamplingParams(slide_chunk=slide_chunk))


@torch.inference_mode()
def assert_same_logits(cached: Backend, uncached: UncachedBackend, lengths: Sequence[int], steps: int) -> None:
    """Both give the same logits while every row, of one of the lengths, grows by some tokens."""
    texts = [random_ids(length + steps) for length in lengths]
    for step in range(steps):
        contexts = [text[: length + step] for text, length in zip(texts, lengths, strict=True)]
        expected = uncached.next_logits(contexts)
        torch.testing.assert_close(cached.next_logits(contexts), expected, rtol=1e-5, atol=LOGITS)
        assert (expected.std(dim=-1) > 0.3).all()


@every_backend
@pytest.mark.parametrize("variant", VARIANTS, ids=name_of)
def test_cached_logits_are_the_uncached_ones_for_every_model(kind: str, variant: tuple[Any, ...]) -> None:
    model = sharp_model(std=0.25, **keys_of(variant))
    assert_same_logits(build(kind, model), UncachedBackend(model), lengths=[13], steps=6)
    assert_same_logits(build(kind, model), UncachedBackend(model), lengths=[1, 15, 10], steps=8)


@every_backend
@pytest.mark.parametrize(
    "changes", [{"qk_norm": True}, {"logit_softcap": 3.0}, {"bias": True}, {"attention": "sdpa"}, {"mlp_conv": 4}]
)
@every_position
def test_cached_logits_are_the_uncached_ones_for_every_other_choice(
    kind: str, position: str, changes: dict[str, object]
) -> None:
    model = sharp_model(std=0.25, position=position, n_kv_head=2, **changes)
    assert_same_logits(build(kind, model), UncachedBackend(model), lengths=[1, 15, 10], steps=8)


@every_backend
@every_position
@pytest.mark.parametrize("prefill_chunk", [None, 1, 3])
def test_cached_logits_are_the_uncached_ones_for_every_length_of_prompt(
    kind: str, position: str, prefill_chunk: int | None
) -> None:
    model = sharp_model(std=0.25, position=position, n_kv_head=2)
    for length in range(1, 17):
        cached = build(kind, model, prefill_chunk=prefill_chunk)
        assert_same_logits(cached, UncachedBackend(model), lengths=[length], steps=1)
    cached = build(kind, model, prefill_chunk=prefill_chunk)
    assert_same_logits(cached, UncachedBackend(model), lengths=range(1, 17), steps=3)


@every_backend
@every_position
@pytest.mark.parametrize("slide_chunk", [None, 1, 5, 16, 99])
def test_cached_logits_are_the_uncached_ones_far_past_the_edge_of_the_window(
    kind: str, position: str, slide_chunk: int | None
) -> None:
    model = sharp_model(std=0.25, position=position, n_kv_head=2)
    cached, uncached = build(kind, model, slide_chunk), UncachedBackend(model, slide_chunk)
    assert_same_logits(cached, uncached, lengths=[14, 3, 40], steps=36)


@every_backend
@pytest.mark.parametrize("rows", [[2], [2, 0], [0, 0, 1, 2, 1]])
def test_logits_stay_the_same_where_rows_were_dropped_reordered_or_multiplied(kind: str, rows: list[int]) -> None:
    model = sharp_model(std=0.25, position="rope")
    texts = [random_ids(30) for _ in range(3)]
    cached, uncached = build(kind, model), UncachedBackend(model)
    with torch.inference_mode():
        cached.next_logits([text[:length] for text, length in zip(texts, (9, 1, 14), strict=True)])
        cached.select(rows)
        for step in range(1, 12):
            contexts = [texts[row][: (9, 1, 14)[row] + step] for row in rows]
            torch.testing.assert_close(
                cached.next_logits(contexts), uncached.next_logits(contexts), rtol=1e-5, atol=LOGITS
            )


@every_position
def test_a_step_of_fixed_shape_gives_the_uncached_logits(position: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its shapes are what is tested here, so that the compiler is left out."""
    monkeypatch.setattr(torch, "compile", lambda step, dynamic: step)
    model = sharp_model(std=0.25, position=position, n_kv_head=2, qk_norm=True)
    assert_same_logits(CompiledBackend(model), UncachedBackend(model), lengths=[13], steps=30)
    assert_same_logits(CompiledBackend(model), UncachedBackend(model), lengths=[1, 15, 10], steps=30)
    shapes: set[tuple[torch.Size, ...]] = set()
    backend = CompiledBackend(model)
    for core in (block.attn.core for block in model.h):  # type: ignore[union-attr]
        core.register_forward_pre_hook(lambda _, inputs: shapes.add(tuple(x.shape for x in inputs)))  # type: ignore[union-attr, arg-type]
    with torch.inference_mode():
        backend.next_logits([[1], [2]])
        shapes.clear()
        for length in range(2, 14):
            backend.next_logits([[1] * length, [2] * length])
    assert len(shapes) == 1


@pytest.mark.parametrize("rows", [[2, 0], [1], [0, 0, 1], [0, 1, 2, 1]])
def test_rows_of_a_step_of_fixed_shape_leave_and_multiply_with_few_compilations(
    rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is compiled runs a few times before it counts, as for a capture."""
    compilations: list[None] = []

    def compiled(step: Callable[[], Tensor], dynamic: bool) -> Callable[[], Tensor]:
        compilations.append(None)
        for _ in range(3):
            step()
        return step

    monkeypatch.setattr(torch, "compile", compiled)
    model, texts = sharp_model(std=0.25), [random_ids(30) for _ in range(3)]
    backend, uncached = CompiledBackend(model), UncachedBackend(model)
    with torch.inference_mode():
        backend.next_logits([text[: 5 + row] for row, text in enumerate(texts)])
        backend.select(rows)
        for more in range(6, 25):
            contexts = [texts[row][: more + row] for row in rows]
            expected = uncached.next_logits(contexts)
            torch.testing.assert_close(backend.next_logits(contexts), expected, rtol=1e-5, atol=1e-5)
    assert len(compilations) == (1 if len(rows) <= 3 else 2)


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
@pytest.mark.parametrize("chunk", [16, 7, 1])
@torch.inference_mode()
def test_a_model_that_fills_a_cache_gives_the_logits_of_one_that_does_not_at_every_position(
    position: str, chunk: int
) -> None:
    model, idx = sharp_model(std=0.25, position=position, n_kv_head=2), torch.randint(23, (3, 16))
    cache = KVCache(model.config, batch=3)
    logits = torch.cat([model(piece, cache=cache) for piece in idx.split(chunk, dim=1)], dim=1)
    torch.testing.assert_close(logits, model(idx), rtol=1e-5, atol=LOGITS)
    assert cache.lengths == [16, 16, 16]


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
@every_position
def test_a_text_is_the_same_cached_uncached_streamed_batched_and_alone(position: str, temperature: float) -> None:
    model = sharp_model(std=0.25, position=position, n_kv_head=2, tie_weights=False)
    prompts = ["abc", "v", "", "hjklmnopqrstu"]
    params = SamplingParams(max_new_tokens=30, temperature=temperature, top_p=0.95, seed=3)
    texts = gpt.generate(model, LETTERS, prompts, **params.model_dump())
    assert texts == ["".join(gpt.stream(model, LETTERS, prompt, **params.model_dump())) for prompt in prompts]
    assert texts == [gpt.generate(model, LETTERS, prompt, **params.model_dump()) for prompt in prompts]
    for options in OPTIONS:
        runtime = build_runtime(model, options)
        together = complete(model, LETTERS, prompts, params, runtime=runtime)
        assert texts == [completion.text for completion in together]
        ids = [LETTERS.encode(prompt or "\n").tolist() for prompt in prompts]
        assert texts == [LETTERS.decode(list(generate_tokens(model, each, params, runtime))) for each in ids]
    assert len(set(texts)) == 4
    assert all(len(text) == 30 for text in texts)


@pytest.fixture(scope="module")
def trained() -> tuple[GPT, CharTokenizer]:
    """A model that has learned its corpus: 200 steps, a second."""
    torch.manual_seed(0)
    tokenizer = CharTokenizer("".join(sorted(set(CORPUS))))
    ids = torch.tensor(tokenizer.encode(CORPUS * 4).tolist())
    model = GPT(tiny_config(vocab_size=tokenizer.vocab_size, position="rope", block_size=32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(200):
        starts = torch.randint(len(ids) - 33, (16, 1))
        rows = ids[starts + torch.arange(33)]
        loss = torch.nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.7
    return model.eval(), tokenizer


@needs_compiler
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_trained_model_writes_the_same_twenty_texts_by_every_backend(
    temperature: float, trained: tuple[GPT, CharTokenizer]
) -> None:
    model, tokenizer = trained
    prompts = [CORPUS[start : start + 3 + start % 20] for start in range(0, 140, 7)]
    params, seeds = SamplingParams(max_new_tokens=80, temperature=temperature), range(20)
    texts = {}
    for backend in ("native", "eager"):
        runtime = build_runtime(model, DecodeOptions(backend))
        texts[backend] = [row.text for row in complete(model, tokenizer, prompts, params, seeds, runtime)]
    assert texts["native"] == texts["eager"]
    assert len(set(texts["native"])) == 20
    assert any(word in text for text in texts["native"] for word in ("keeper", "door"))


@needs_compiler
def test_an_8_bit_cache_of_the_engine_rounds_as_pytorchs_with_its_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    class AsInC(stores.Int8Store):
        def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
            super().__init__(shape, device)
            self.scales = stores.FloatStore((*shape[:-1], 1), torch.float32, device)

    def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
        scales = x.abs().amax(dim=-1, keepdim=True).float() / 127
        inverse = torch.where(scales > 0, 1 / scales, 0.0)
        return (x.float() * inverse).round().clamp(-127, 127).to(torch.int8), scales

    monkeypatch.setattr(stores, "Int8Store", AsInC)
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
