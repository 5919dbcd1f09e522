"""Answers to many requests by both backends: each is what `generate` gives for that request alone."""

from functools import cache
from typing import Any

import pytest
import torch
from generation.support import BLOCK_SIZE, LETTERS, WINDOW_BLOCKS, Answer, Drive, Text, complete
from hypothesis import given
from hypothesis import strategies as st
from native_support import needs_compiler

import gpt
from gpt.config import SamplingParams
from gpt.generation.engine import Engine
from gpt.generation.runtime import DecodeOptions, Runtime, build_runtime
from gpt.model import GPT
from gpt.model.quantized import quantize
from gpt.system.errors import GenerationError
from patience import examples
from tiny import sharp_model

VARIANTS = [
    {"position": "rope", "n_kv_head": 2, "qk_norm": True},
    {"norm": "rmsnorm", "mlp": "swiglu"},
    {"position": "sinusoidal", "n_kv_head": 1, "bias": True},
]
every_backend = pytest.mark.parametrize("backend", ["eager", pytest.param("native", marks=needs_compiler)])


@cache
def model_of(variant: int = 0) -> GPT:
    return sharp_model(std=0.25, block_size=BLOCK_SIZE, **VARIANTS[variant])


@cache
def runtime_of(variant: int = 0) -> Runtime:
    return build_runtime(model_of(variant), DecodeOptions("native"))


def engine_of(model: GPT, backend: str, blocks: int | None = None, kv_dtype: str = "fp32") -> Engine:
    return build_runtime(model, DecodeOptions(backend, kv_dtype=kv_dtype)).engine(LETTERS, 6, 64, blocks)


def alone(answer: Answer, runtime: Runtime) -> Text:
    request = answer.request
    return complete(runtime.model, [LETTERS.decode(request.prompt_ids)], request.params, runtime=runtime)[0]


def finish(drive: Drive, runtime: Runtime) -> None:
    """All answers are those given alone: the text, the reason to end, and the log-probabilities, to the last bit."""
    drive.finish()
    for answer in drive.answers.values():
        expected = alone(answer, runtime)
        assert (answer.text, answer.finish, answer.tokens) == (expected.text, expected.finish, expected.tokens)


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
prompts = st.tuples(st.sampled_from(["abcdefghij", "vut", "k"]), st.integers(1, BLOCK_SIZE)).map(
    lambda pair: (pair[0] * BLOCK_SIZE)[: pair[1]]
)


@needs_compiler
@examples(0.25)
@given(
    asked=st.lists(st.tuples(prompts, params, st.integers(0, 20)), min_size=2, max_size=10),
    blocks=st.integers(WINDOW_BLOCKS, 16),
    variant=st.integers(0, len(VARIANTS) - 1),
)
def test_tokens_and_logprobs_are_the_same_bits_whatever_else_is_in_the_batch(
    asked: list[tuple[str, SamplingParams, int]], blocks: int, variant: int
) -> None:
    drive = Drive(engine_of(model_of(variant), "native", blocks))
    for prompt, each, steps in asked:
        drive.add(prompt, **each.model_dump())
        drive.step(steps)
    finish(drive, runtime_of(variant))


@needs_compiler
@pytest.mark.parametrize(("weights", "kv_dtype"), [("bf16", "fp32"), ("int8", "bf16"), ("int4", "int8")])
def test_every_format_of_weights_and_cache_gives_the_answers_given_alone(weights: str, kv_dtype: str) -> None:
    model = quantize(model_of(), weights)
    drive = Drive(engine_of(model, "native", 9, kv_dtype))
    for n in range(1, 9):
        drive.add("abc" * n, max_new_tokens=100, seed=n, logprobs=2)
    finish(drive, build_runtime(model, DecodeOptions("native", kv_dtype=kv_dtype)))


@pytest.mark.parametrize("variant", range(len(VARIANTS)))
def test_pytorch_gives_the_same_texts(variant: int) -> None:
    """Its logits are rounded otherwise in a batch; of these models that is far from the difference of two tokens."""
    drive = Drive(engine_of(model_of(variant), "eager", 12))
    answers = [
        drive.add(("abcdefghij" * 20)[: 25 * n], max_new_tokens=60, temperature=0.9 * (n % 2), seed=n, logprobs=2)
        for n in range(1, 9)
    ]
    drive.step()
    drive.cancel(answers.pop(3))
    drive.finish()
    runtime = build_runtime(model_of(variant), DecodeOptions("eager"))
    for answer in answers:
        expected = alone(answer, runtime)
        assert answer.text == expected.text
        for found, token in zip(answer.tokens, expected.tokens, strict=True):
            assert found.logprob == pytest.approx(token.logprob, abs=1e-4)


@every_backend
def test_a_model_whose_logits_are_not_finite_fails_the_request_and_no_other(backend: str) -> None:
    model = sharp_model(std=0.25, block_size=BLOCK_SIZE)
    text = gpt.generate(model, LETTERS, "abc", max_new_tokens=5, temperature=0.0)
    bad = next(letter for letter in "opqrstuv" if letter not in text)
    with torch.no_grad():
        model.wte.weight[int(LETTERS.encode(bad)[0])] = float("nan")
    drive = Drive(engine_of(model, backend))
    broken = drive.add("abc" + bad, max_new_tokens=5)
    sound = drive.add("abc", max_new_tokens=5, temperature=0.0)
    drive.finish()
    assert (broken.finish, broken.tokens) == ("error", [])
    assert isinstance(broken.request.error, GenerationError)
    assert "after position 3 are not finite" in str(broken.request.error)
    assert (sound.finish, sound.text) == ("length", text)
    next_one = drive.add("abc", max_new_tokens=5, temperature=0.0)  # may lie in the blocks that held NaN
    drive.finish()
    assert next_one.text == text


@every_backend
def test_all_requests_are_computed_in_the_same_pass(backend: str) -> None:
    model = sharp_model(block_size=BLOCK_SIZE)
    engine = engine_of(model, backend)
    drive, run, steps, passes = Drive(engine), engine._runner.run, list[int](), list[int]()

    def watched(chunks: Any) -> Any:
        steps.append(len(chunks))
        return run(chunks)

    engine._runner.run = watched  # type: ignore[method-assign]
    model.register_forward_pre_hook(lambda module, inputs: passes.append(len(inputs[0])))
    for seed in range(6):
        drive.add("a", max_new_tokens=10, seed=seed)
    drive.finish()
    assert set(steps) == {6}
    # several tokens in a call of the native engine, which does not run the module
    assert passes == [6] * 10 if backend == "eager" else not passes and len(steps) <= 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((4, 64, 3), "3 blocks of 64 positions; one window needs 4"),
        ((0, 64), "max_sequences is 0, expected at least 1"),
    ],
)
def test_what_cannot_be_built_is_refused(arguments: tuple[int, ...], message: str) -> None:
    with pytest.raises(GenerationError, match=message):
        build_runtime(model_of(), DecodeOptions("eager")).engine(LETTERS, *arguments)
