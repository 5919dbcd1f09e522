"""Logits of every runner are those of the whole window without a cache, and answers those of a
request alone.
"""

import math
from collections.abc import Iterable
from functools import cache
from random import Random
from typing import Any

import pytest
import torch
from generation.support import LETTERS, Drive, Text, complete, rows_of, runtime_of
from hypothesis import given
from hypothesis import strategies as st
from native_support import needs_compiler

import gpt
from gpt.config import SamplingParams
from gpt.generation.batch import Batch
from gpt.generation.engine import Engine
from gpt.generation.generator import generate_tokens
from gpt.generation.reference import reference_texts, reference_tokens
from gpt.generation.runtime import DecodeOptions, Runtime, build_runtime
from gpt.generation.thread_tuner import Split, ThreadTuner
from gpt.generation.tokens import Window
from gpt.model import GPT
from gpt.model.quantized import quantize
from gpt.system.errors import GenerationError
from patience import examples
from tiny import sharp_model
from tolerances import LOGITS
from variants import VARIANTS, draw_model, keys_of

every_backend = pytest.mark.parametrize(
    "backend", ["eager", "graph", pytest.param("native", marks=needs_compiler)]
)


@cache
def model_of(position: str, **changes: Any) -> GPT:
    return sharp_model(std=0.25, position=position, n_kv_head=2, **changes)


def random_prompts(model: GPT, lengths: Any, seed: int = 0) -> list[list[int]]:
    return [Random(seed).choices(range(model.vocab_size), k=length) for length in lengths]


@torch.inference_mode()
def largest_error(runtime: Runtime, prompts: list[list[int]], steps: int, **params: Any) -> float:
    """How far log-probabilities are from the uncached ones, over the deviation of these, while a
    batch grows.
    """
    model = runtime.model
    rows = [list(prompt) for prompt in prompts]
    errors = []
    window = Window(model.config.block_size)
    sampling = SamplingParams(
        max_new_tokens=steps, temperature=1.0, logprobs=model.vocab_size, **params
    )
    batch = Batch(runtime, prompts, sampling, range(len(prompts)), LETTERS)
    while batch.active:
        for row, chunk in batch.step().items():
            assert chunk.token is not None
            expected = (
                model(torch.tensor([window.of(rows[row])]))[0, -1].float().log_softmax(dim=-1)
            )
            assert expected.std() > 0.05
            found = torch.tensor([logprob for _, logprob in sorted(chunk.token.top)])
            errors.append((found - expected).abs().max() / expected.std())
            rows[row].append(chunk.token.id)
    return float(torch.stack(errors).max())


@every_backend
@pytest.mark.parametrize("changes", [*map(keys_of, VARIANTS), *range(8)], ids=str)
def test_logits_equal_uncached_ones_beyond_the_window_too(
    backend: str, changes: dict[str, Any] | int
) -> None:
    """Of every choice, and of 8 random models."""
    model = (
        draw_model(Random(changes))
        if isinstance(changes, int)
        else sharp_model(std=0.25, **changes)
    )
    window = model.config.block_size
    prompts = random_prompts(model, (1, window // 2, window - 1, window + 3))
    assert largest_error(runtime_of(model, backend), prompts, steps=8) < LOGITS


@every_backend
@examples(0.1)
@given(
    position=st.sampled_from(["learned", "sinusoidal", "rope"]),
    lengths=st.lists(st.integers(1, 17) | st.sampled_from([5, 40]), min_size=1, max_size=4),
    steps=st.integers(1, 40),
)
def test_logits_equal_uncached_ones_while_rows_leave(
    backend: str, position: str, lengths: list[int], steps: int
) -> None:
    model = model_of(position)
    runtime = runtime_of(model, backend)
    prompts = random_prompts(model, lengths, steps)
    assert largest_error(runtime, prompts, steps, stop=("a", "bc")) < LOGITS


@pytest.mark.parametrize(
    ("backend", "kv_dtype", "tolerance"),
    [
        ("eager", "bf16", 0.02),
        ("graph", "bf16", 0.02),
        ("eager", "fp16", 0.003),
        pytest.param("native", "bf16", 0.02, marks=needs_compiler),
        pytest.param("native", "int8", 0.04, marks=needs_compiler),
    ],
)
def test_smaller_cache_changes_the_logits_by_its_rounding_only(
    backend: str, kv_dtype: str, tolerance: float
) -> None:
    runtime = runtime_of(sharp_model(std=0.25), backend, kv_dtype)
    assert tolerance / 10 < largest_error(runtime, [[3, 1, 4, 1, 5]], 40) < 3 * tolerance


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rope"])
@pytest.mark.parametrize("kv_dtype", ["bf16", "fp32"])
def test_bfloat16_model_has_the_same_logits_with_a_cache(position: str, kv_dtype: str) -> None:
    model = sharp_model(std=0.25, position=position, n_kv_head=2).to(torch.bfloat16)
    assert largest_error(build_runtime(model, DecodeOptions("eager", kv_dtype)), [[7]], 39) < 0.1


@every_backend
@pytest.mark.parametrize(
    "given", [{}, {"temperature": 0}, {"top_k": 5}, {"repetition_penalty": 1.5}]
)
@pytest.mark.parametrize("prompt", [[3], [3, 1, 4] * 5, list(range(20))], ids=len)
def test_tokens_are_those_of_the_reference(
    backend: str, given: dict[str, Any], prompt: list[int]
) -> None:
    model = model_of("rope")
    params = SamplingParams(max_new_tokens=40, seed=5, **given)
    found = generate_tokens(model, prompt, params, runtime_of(model, backend))
    assert list(found) == list(reference_tokens(model, prompt, params))


@pytest.mark.parametrize(
    "given", [{}, {"end_id": 7}, {"stop": ("ab", "c")}, {"end_id": 3, "stop": ("f",)}], ids=str
)
def test_texts_of_the_reference_end_as_those_of_the_engine(given: dict[str, Any]) -> None:
    model = model_of("rope", vocab_size=30)
    params = SamplingParams(max_new_tokens=40, **given)
    texts = [text.text for text in complete(model, [""] * 3, params, seeds=(1, 2, 3))]
    polls = []
    assert reference_texts(model, LETTERS, params, (1, 2, 3), lambda: polls.append(1)) == texts
    assert len(polls) == 40
    assert any(len(text) < 40 for text in texts) == bool(given)


@every_backend
def test_row_that_ends_before_its_logits_break_keeps_its_text(backend: str) -> None:
    """However far ahead tokens are sampled, only those that are asked for count."""
    model = sharp_model(std=0.25)
    params = SamplingParams(max_new_tokens=20, temperature=0)
    expected = list(reference_tokens(model, [1, 2, 3], params))[:7]
    with torch.no_grad():
        model.wpe.weight[9] = math.nan  # type: ignore[index, union-attr]
    batch = Batch(runtime_of(model, backend), [[1, 2, 3]], params, [0])
    assert rows_of(batch, 7) == [expected]
    with pytest.raises(GenerationError, match="position 9 are not finite"):
        batch.step()


@needs_compiler
def test_tokens_are_the_same_bits_by_however_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("rope")
    params = SamplingParams(max_new_tokens=80, seed=5, logprobs=2, repetition_penalty=1.1)
    texts = []
    torch.set_num_threads(2)
    try:
        for split in (Split(1), Split(2), Split(2, by_sequence=True)):
            monkeypatch.setattr(
                ThreadTuner,
                "next",
                lambda self, split=split: split if split in self.splits else self.fastest,
            )
            texts.append([text.tokens for text in complete(model, ["abc", "v", "hjk"], params)])
    finally:
        torch.set_num_threads(1)
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("backend", ["auto", "eager", "graph"])
def test_text_is_the_same_streamed_batched_and_alone(backend: str, temperature: float) -> None:
    model = model_of("rope")
    prompts = ["abc", "v", "", "hjklmnopqrstu"]
    runtime = runtime_of(model, backend)
    options = {
        "runtime": runtime,
        "max_new_tokens": 30,
        "temperature": temperature,
        "top_p": 0.95,
        "seed": 3,
    }
    texts = gpt.generate(model, LETTERS, prompts, **options)
    streamed = [list(gpt.stream(model, LETTERS, prompt, **options)) for prompt in prompts]
    assert texts == ["".join(pieces) for pieces in streamed]
    assert all(map(all, streamed))
    assert texts == [gpt.generate(model, LETTERS, prompt or "\n", **options) for prompt in prompts]
    assert len(set(texts)) == 4
    assert all(len(text) == 30 for text in texts)


WIDE = [
    {"position": "rope", "n_kv_head": 2, "qk_norm": True},
    {"norm": "rmsnorm", "mlp": "swiglu"},
    {"position": "sinusoidal", "n_kv_head": 1, "bias": True},
]
"""Models with a window of 200, which is 4 blocks of a cache."""


@cache
def wide_model(variant: int = 0) -> GPT:
    return sharp_model(std=0.25, block_size=200, **WIDE[variant])


@cache
def native_runtime(variant: int) -> Runtime:
    return build_runtime(wide_model(variant), DecodeOptions("native"))


def engine_of(runtime: Runtime, blocks: int | None = None) -> Engine:
    return runtime.engine(LETTERS, 6, 64, blocks)


def finish(drive: Drive, runtime: Runtime, answers: Iterable[Text]) -> None:
    """Answers are those given alone: the text, the reason to end, and the log-probabilities,
    natively to the bit.
    """
    drive.finish()
    for answer in answers:
        assert answer.request is not None
        prompt = LETTERS.decode(answer.request.prompt_ids)
        params = answer.request.params
        (expected,) = complete(runtime.model, [prompt], params, runtime=runtime)
        assert (answer.text, answer.finish, answer.ids) == (
            expected.text,
            expected.finish,
            expected.ids,
        )
        found, right = ([token.logprob for token in each.tokens] for each in (answer, expected))
        assert found == (right if "native" in runtime.name else pytest.approx(right, abs=1e-4))


params = st.builds(
    SamplingParams,
    max_new_tokens=st.integers(1, 90),
    temperature=st.sampled_from([0.0, 0.8, 1.3]),
    top_k=st.sampled_from([0, 5]),
    top_p=st.sampled_from([1.0, 0.9]),
    min_p=st.sampled_from([0.0, 0.05]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    seed=st.integers(0, 2**32 - 1),
    stop=st.sampled_from([(), ("a",), ("bc", "cab")]),
    end_id=st.sampled_from([None, 7]),
    logprobs=st.sampled_from([None, 0, 3]),
    overflow=st.sampled_from(["slide", "stop"]),
)
prompts = st.tuples(st.sampled_from(["abcdefghij", "vut", "k"]), st.integers(1, 200)).map(
    lambda pair: (pair[0] * 200)[: pair[1]]
)


@needs_compiler
@examples(0.25)
@given(
    asked=st.lists(st.tuples(prompts, params, st.integers(0, 20)), min_size=2, max_size=10),
    blocks=st.integers(4, 16),
    variant=st.integers(0, len(WIDE) - 1),
)
def test_tokens_do_not_depend_on_the_rest_of_the_batch(
    asked: list[tuple[str, SamplingParams, int]], blocks: int, variant: int
) -> None:
    drive = Drive(engine_of(native_runtime(variant), blocks))
    for prompt, each, steps in asked:
        drive.add(prompt, **each.model_dump())
        drive.step(steps)
    finish(drive, native_runtime(variant), drive.answers.values())


@pytest.mark.parametrize(
    ("backend", "variant", "weights", "kv_dtype"),
    [
        *(("eager", variant, None, "fp32") for variant in range(len(WIDE))),
        *(("graph", variant, None, "fp32") for variant in range(len(WIDE))),
        *(
            pytest.param("native", 0, *formats, marks=needs_compiler)
            for formats in (("bf16", "fp32"), ("int8", "bf16"), ("int4", "int8"))
        ),
    ],
)
def test_formats_give_the_answers_given_alone(
    backend: str, variant: int, weights: str | None, kv_dtype: str
) -> None:
    model = wide_model(variant) if weights is None else quantize(wide_model(variant), weights)
    runtime = runtime_of(model, backend, kv_dtype)
    drive = Drive(engine_of(runtime, 9))
    answers = [
        drive.add(
            ("abc" * 50)[: 17 * n],
            max_new_tokens=100,
            seed=n,
            logprobs=2,
            temperature=0.9 * (n % 2),
        )
        for n in range(1, 9)
    ]
    drive.step()
    drive.cancel(answers.pop(3))
    finish(drive, runtime, answers)


@every_backend
def test_logits_not_finite_fail_only_their_request(backend: str) -> None:
    model = sharp_model(std=0.25, block_size=200)
    text = gpt.generate(model, LETTERS, "abc", max_new_tokens=5, temperature=0.0)
    bad = next(letter for letter in "opqrstuv" if letter not in text)
    with torch.no_grad():
        model.wte.weight[int(LETTERS.encode(bad)[0])] = float("nan")
    drive = Drive(engine_of(runtime_of(model, backend)))
    broken = drive.add("abc" + bad, max_new_tokens=5)
    sound = drive.add("abc", max_new_tokens=5, temperature=0.0)
    drive.finish()
    assert (broken.finish, broken.tokens) == ("error", [])
    assert broken.request is not None
    assert "after position 3 are not finite" in str(broken.request.error)
    assert (sound.finish, sound.text) == ("length", text)
    # Its keys and values may lie in the blocks that held NaN.
    next_one = drive.add("abc", max_new_tokens=5, temperature=0.0)
    drive.finish()
    assert next_one.text == text
