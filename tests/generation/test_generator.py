"""Texts and tokens from a model: batches, and the functions around them."""

import math
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from generation.support import LETTERS, Scripted, Text, complete, rows_of
from native_support import needs_compiler

import gpt
from gpt.config import SamplingParams
from gpt.data import CharTokenizer
from gpt.generation.batch import Batch, TextBatch
from gpt.generation.generator import generate, generate_tokens
from gpt.generation.runner import Runner
from gpt.generation.runtime import DecodeOptions, Runtime, build_runtime
from gpt.generation.text import UNKNOWN
from gpt.model import GPT
from gpt.native.build import find_compiler
from gpt.system.errors import DataError, GenerationError, InputError
from patience import PATIENCE
from tiny import sharp_model, tiny_config

every_backend = pytest.mark.parametrize(
    "backend", ["eager", pytest.param("native", marks=needs_compiler)]
)


def completions(prompts: list[str], seeds: list[int] | None = None, **params: object) -> list[Text]:
    return complete(sharp_model(), prompts, SamplingParams(**params), seeds)


def tokens_by(
    backend: str, model: GPT, prompt: Sequence[int] = (1,), **params: object
) -> list[int]:
    runtime = build_runtime(model, DecodeOptions(backend))
    return list(generate_tokens(model, prompt, SamplingParams.model_validate(params), runtime))


def runtime_with(runner: Runner) -> Runtime:
    runtime = build_runtime(sharp_model(), DecodeOptions("eager"))
    runtime.runner = lambda *_: runner  # type: ignore[method-assign]
    return runtime


def test_rows_take_their_seeds_or_that_of_the_parameters() -> None:
    one, same, other = completions(["abc"] * 3, seeds=[4, 4, 5], max_new_tokens=20)
    assert one == same
    assert one.text != other.text
    assert completions(["a", "b"], seed=9) == completions(["a", "b"], seeds=[9, 9], seed=1)


def test_rows_end_at_their_own_stop_also_by_the_last_token() -> None:
    free = completions(["a", "b", "c", "d"], seeds=[1, 2, 3, 4], max_new_tokens=12)
    stops = ("e", "kj", free[0].text[-3:])
    stopped = completions(["a", "b", "c", "d"], seeds=[1, 2, 3, 4], max_new_tokens=12, stop=stops)
    for whole, cut in zip(free, stopped, strict=True):
        places = [place for stop in stops if (place := whole.text.find(stop)) >= 0]
        assert cut.text == whole.text[: min(places, default=12)]
        assert cut.finish == ("stop" if places else "length")
    assert (stopped[0].text, {row.finish for row in stopped}) == (
        free[0].text[:-3],
        {"stop", "length"},
    )


def test_end_token_shows_what_was_held_back_for_a_stop() -> None:
    (free,) = completions(["a"], max_new_tokens=5, seed=3)
    *before, end = free.ids
    assert end not in before
    (ended,) = completions(["a"], seed=3, end_id=end, stop=(free.text[3:] + "abc",))
    assert (ended.finish, ended.text, ended.ids) == ("end", free.text[:4], free.ids)
    params = SamplingParams(seed=3, end_id=end)
    assert gpt.generate(sharp_model(), LETTERS, "a", seed=3, max_new_tokens=5) == free.text
    assert list(generate_tokens(sharp_model(), LETTERS.encode("a").tolist(), params)) == free.ids


@pytest.mark.parametrize("prompt", ["a", "abcdefgh", "abcdefghijklmnop"])
def test_overflow_stop_ends_a_text_at_a_full_window(prompt: str) -> None:
    (row,) = completions([prompt], max_new_tokens=50, overflow="stop")
    left = 17 - len(prompt)
    assert (row.finish, len(row.text)) == ("window", left)
    assert completions([prompt], max_new_tokens=left, overflow="stop")[0].finish == "length"
    assert completions([prompt], max_new_tokens=50)[0].text.startswith(row.text)


def test_chunks_come_in_turn_and_name_their_row() -> None:
    batch = TextBatch(
        build_runtime(sharp_model()), LETTERS, ["a", "b"], SamplingParams(max_new_tokens=3), [1, 2]
    )
    assert [(chunk.row, chunk.finish) for chunk in batch] == [(0, None), (1, None)] * 2 + [
        (0, "length"),
        (1, "length"),
    ]
    none = TextBatch(
        build_runtime(sharp_model()), LETTERS, ["a", "b"], SamplingParams(max_new_tokens=0)
    )
    assert list(none) == [(0, "", None, "length"), (1, "", None, "length")]
    assert completions([]) == []


@pytest.mark.parametrize("count", [None, 0, 3, 1000])
def test_logprobs_are_the_models_own_whatever_the_sampling(count: int | None) -> None:
    model = sharp_model()
    prompt = LETTERS.encode("abc").tolist()
    params = {"max_new_tokens": 12, "temperature": 0.4, "top_k": 5, "repetition_penalty": 1.3}
    (row,) = completions(["abc"], logprobs=count, **params)
    assert row.text == completions(["abc"], **params)[0].text
    with torch.no_grad():
        expected = model(torch.tensor([[*prompt, *row.ids[:-1]]]))[
            0, len(prompt) - 1 :
        ].log_softmax(dim=-1)
    for one, logprobs in zip(row.tokens, expected, strict=True):
        best = logprobs.topk(min(count or 0, 23))
        assert [index for index, _ in one.top] == best.indices.tolist()
        assert [value for _, value in one.top] == pytest.approx(best.values.tolist(), abs=1e-5)
        assert one.logprob == (
            None if count is None else pytest.approx(logprobs[one.id].item(), abs=1e-5)
        )


def test_repetition_penalty_sees_the_prompt_and_the_text_so_far() -> None:
    runtime = runtime_with(Scripted(lambda _: [4.0, 3.0, 2.0, 1.0]))
    params = SamplingParams(temperature=0, repetition_penalty=1000.0)
    assert rows_of(Batch(runtime, [[0], [1, 2]], params, [1, 1]), 3) == [[1, 2, 3], [0, 3, 0]]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_error_names_the_position_of_logits_not_finite(value: float) -> None:
    runtime = runtime_with(Scripted(lambda context: [0.0, value if len(context) == 5 else 0.0]))
    batch = Batch(runtime, [[0], [1, 1, 0, 1], [0, 1]], SamplingParams(), [1, 2, 3])
    batch.step()
    with pytest.raises(GenerationError, match="after position 4 are not finite"):
        batch.step()
    assert batch.step() == {}


def test_calls_refuse_what_they_cannot_generate(tiny_model: GPT) -> None:
    runtime = build_runtime(tiny_model)
    params = SamplingParams()
    with pytest.raises(DataError, match="'€' at 1"):
        gpt.stream(tiny_model, LETTERS, "a€")
    with pytest.raises(InputError, match="23"):
        tokens_by("auto", tiny_model, prompt=[23])
    with pytest.raises(GenerationError, match="at least one token"):
        Batch(runtime, [[1, 2], []], params, [1, 1])
    with pytest.raises(GenerationError, match="0 blocks of 64 positions; one window needs 1"):
        runtime.engine(LETTERS, 4, 64, 0)
    with pytest.raises(GenerationError, match="3 blocks of 64 positions; one window needs 4"):
        build_runtime(GPT(tiny_config(block_size=200)), DecodeOptions("eager")).engine(
            LETTERS, 4, 64, 3
        )
    for arguments, name in (((0, 64), "max_sequences"), ((1, 0), "prefill_chunk")):
        with pytest.raises(GenerationError, match=f"{name} is 0, expected at least 1"):
            runtime.engine(LETTERS, *arguments)
    with pytest.raises(GenerationError, match="more than the window of 16"):
        TextBatch(runtime, LETTERS, ["a", "b" * 20], params)
    with pytest.raises(GenerationError, match="seed 4294967296: expected"):  # which would be seed 0
        TextBatch(runtime, LETTERS, ["a", "b"], params, [1, 2**32])
    for seeds in ([1], []):
        with pytest.raises(
            GenerationError, match=f"^{len(seeds)} seeds for 2 prompts; give one each$"
        ):
            TextBatch(runtime, LETTERS, ["a", "b"], params, seeds)
    with pytest.raises(GenerationError) as caught:
        generate(tiny_model, LETTERS, "a", max_tokens=3, top_p=7)
    assert str(caught.value) == (
        "top_p: got 7, expected less than or equal to 1; max_tokens: unknown key; did you "
        "mean max_new_tokens?"
    )


def test_tokens_follow_a_text_as_they_follow_its_ids(tiny_model: GPT) -> None:
    tokenizer = CharTokenizer("abc")
    params = SamplingParams(max_new_tokens=5)
    before = torch.get_rng_state()
    expected = list(generate_tokens(tiny_model, [0, 2, 1], params))
    assert list(generate_tokens(tiny_model, "acb", params, tokenizer=tokenizer)) == expected
    assert list(generate_tokens(tiny_model, torch.tensor([[0, 2, 1]]), params)) == expected
    assert torch.equal(before, torch.get_rng_state())


@needs_compiler
def test_native_backend_is_taken_where_it_can_be(tiny_model: GPT) -> None:
    int8 = gpt.quantize(tiny_model, "int8")
    names = [
        build_runtime(tiny_model, DecodeOptions(kv_dtype=kind)).name
        for kind in ("fp32", "bf16", "fp16")
    ]
    assert names == ["native, fp32 cache", "native, bf16 cache", "eager, fp16 cache"]
    assert build_runtime(int8).name == "native, int8 weights, fp32 cache"


@every_backend
def test_model_in_training_mode_generates_without_dropout(backend: str) -> None:
    model = GPT(tiny_config(dropout=0.5)).eval()
    expected = tokens_by(backend, model, max_new_tokens=20)
    model.train()
    model.h[0].eval()
    assert tokens_by(backend, model, max_new_tokens=20) == expected
    assert (model.training, model.h[0].attn.training, model.h[1].attn.training) == (
        True,
        False,
        True,
    )


@every_backend
@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0}, {"top_k": 9}, {"top_p": 0.9, "repetition_penalty": 1.5}]
)
def test_ids_that_the_tokenizer_does_not_have_are_not_sampled(
    backend: str, options: dict[str, Any]
) -> None:
    model, few = sharp_model(), CharTokenizer("\nabcdef")  # 7 ids of a model that has 23
    params = SamplingParams(max_new_tokens=40, logprobs=9, seed=3, **options)
    runtime, eager = (build_runtime(model, DecodeOptions(each)) for each in (backend, "eager"))
    found, others = (
        complete(model, ["abc", "f"], params, runtime=each, tokenizer=few)
        for each in (runtime, eager)
    )
    for completion in found:
        assert all(
            token.id < 7 and {index for index, _ in token.top} == set(range(7))
            for token in completion.tokens
        )
        assert UNKNOWN not in completion.text
    assert [other.text for other in others] == [completion.text for completion in found]
    assert list(generate_tokens(model, "abc", params.limited_to(7), runtime, few)) == found[0].ids
    assert SamplingParams(end_id=9).limited_to(7).ids == 10  # it still ends a text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forked_process_is_refused_instead_of_hanging() -> None:
    program = """
import os, sys, torch
from gpt.config import ModelConfig, SamplingParams
from gpt.generation.generator import generate_tokens
from gpt.generation.runtime import DecodeOptions, build_runtime
from gpt.model import GPT

def check(backend):
    torch.set_num_threads(2)
    model = GPT(ModelConfig(n_layer=1, n_head=2, n_embd=64, vocab_size=9)).eval()
    runtime, params = build_runtime(model, DecodeOptions(backend)), SamplingParams(max_new_tokens=3)
    expected, begun = (generate_tokens(model, [1] * 200, params, runtime) for _ in range(2))
    expected, _ = list(expected), next(begun)
    if os.fork():
        return os.waitstatus_to_exitcode(os.wait()[1])
    for tokens in (begun, *(generate_tokens(model, [1], params, kept) for kept in (runtime, None))):
        try:
            list(tokens)
            os._exit(3)
        except Exception as error:
            print(f"{type(error).__name__}: {error}", flush=True)
    torch.set_num_threads(1)
    os._exit(list(generate_tokens(model, [1] * 200, params, runtime)) != expected)

sys.exit(any([check(backend) for backend in sys.argv[1:]]))
"""
    backends = ["eager", *(["native"] if find_compiler() is not None else [])]
    command = [sys.executable, "-c", program, *backends]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines == lines[:1] * 3 * len(backends)
    refusal = "DeviceError: this process was forked, and torch's threads do not survive that: call "
    assert lines[0].startswith(refusal)
