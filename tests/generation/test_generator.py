import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from generation.support import LETTERS, complete
from native_support import needs_compiler

import gpt
from gpt.config import SamplingParams
from gpt.data import CharTokenizer
from gpt.generation import TextBatch, generate, generate_tokens
from gpt.generation.beam import beam_search
from gpt.generation.reference import reference_tokens
from gpt.generation.runtime import DecodeOptions, build_runtime
from gpt.generation.sampling import next_token_probabilities, sample
from gpt.kernels.build import find_compiler
from gpt.model import GPT
from gpt.system.errors import DataError, DeviceError, GenerationError, InputError
from patience import PATIENCE
from tiny import sharp_model, tiny_config


def tokens_by(backend: str, model: GPT, prompt: Sequence[int] = (1,), **params: object) -> list[int]:
    runtime = build_runtime(model, DecodeOptions(backend))
    return list(generate_tokens(model, prompt, SamplingParams.model_validate(params), runtime))


def test_the_reference_is_the_loop_written_out(tiny_model: GPT) -> None:
    params = SamplingParams(max_new_tokens=40, temperature=0.9, top_k=7, seed=5)
    generator = torch.Generator().manual_seed(5)
    ids = [3, 1, 4]
    for _ in range(40):
        with torch.no_grad():
            start = max(0, -(-(len(ids) - 16) // 4) * 4)  # 16 positions are all it has; a quarter is dropped at a time
            logits = tiny_model(torch.tensor([ids[start:]]))[:, -1]
        ids.append(int(sample(next_token_probabilities(logits, params), torch.rand(1, generator=generator))))
    assert list(reference_tokens(tiny_model, [3, 1, 4], params)) == ids[3:]


@pytest.mark.parametrize(
    "options",
    [
        DecodeOptions("eager"),
        pytest.param(DecodeOptions("native"), marks=needs_compiler),
    ],
    ids=str,
)
@pytest.mark.parametrize("given", [{}, {"temperature": 0}, {"top_k": 5}, {"repetition_penalty": 1.5}])
@pytest.mark.parametrize("prompt", [[3], [3, 1, 4] * 5, list(range(20))], ids=len)
def test_tokens_are_those_of_the_reference(options: DecodeOptions, given: dict[str, Any], prompt: list[int]) -> None:
    model, params = sharp_model(std=0.25, position="rope"), SamplingParams(max_new_tokens=40, seed=5, **given)
    found = generate_tokens(model, prompt, params, build_runtime(model, options))
    assert list(found) == list(reference_tokens(model, prompt, params))


def test_sampling_leaves_torchs_generator_alone(tiny_model: GPT) -> None:
    before = torch.get_rng_state()
    gpt.generate(tiny_model, LETTERS, "a", max_new_tokens=5)
    assert torch.equal(before, torch.get_rng_state())


def test_what_cannot_be_generated_is_refused_by_the_call_itself(tiny_model: GPT) -> None:
    with pytest.raises(DataError, match="'€' at 1"):
        gpt.stream(tiny_model, LETTERS, "a€")
    with pytest.raises(InputError, match="23"):
        tokens_by("auto", tiny_model, prompt=[23])
    with pytest.raises(GenerationError, match="seed 4294967296: expected"):  # which would be seed 0
        TextBatch(build_runtime(tiny_model), LETTERS, ["a", "b"], SamplingParams(), [1, 2**32])


# --- who computes --------------------------------------------------------------------------------


def runtime_name(model: GPT, backend: str = "auto", **options: Any) -> tuple[str, list[str]]:
    lines: list[str] = []
    return build_runtime(model, DecodeOptions(backend, **options), report=lines.append).name, lines


@needs_compiler
def test_the_native_backend_is_taken_where_it_can_be(tiny_model: GPT) -> None:
    assert runtime_name(tiny_model)[0] == "native, fp32 cache"
    assert runtime_name(gpt.quantize(tiny_model, "int8"))[0] == "native, int8 weights, fp32 cache"
    assert runtime_name(tiny_model, kv_dtype="bf16")[0] == "native, bf16 cache"
    assert runtime_name(tiny_model, kv_dtype="fp16")[0] == "eager, fp16 cache"


@needs_compiler
def test_a_model_that_someone_looks_into_is_run_as_it_is(tiny_model: GPT) -> None:
    tiny_model.h[0].register_forward_hook(lambda *_: None)
    why = "the native backend does not cover hooks, and h.0 has one"
    assert runtime_name(tiny_model) == (
        "eager, fp32 cache",
        [f"no native backend, which is several times faster: {why}"],
    )
    with pytest.raises(DeviceError, match=f"^no native backend: {why}; take backend auto or eager$"):
        runtime_name(tiny_model, "native")
    with pytest.raises(DeviceError, match=f"^no native backend: {why}; take another kv_dtype$"):
        build_runtime(tiny_model, DecodeOptions(kv_dtype="int8"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "quantum"}, "expected one of auto, eager, native"),
        ({"kv_dtype": "fp8"}, "kv_dtype 'fp8': expected one of fp32"),
        ({"backend": "native", "kv_dtype": "fp16"}, "the native backend has no cache of fp16"),
        ({"backend": "eager", "kv_dtype": "int8"}, "the eager backend has no cache of int8"),
    ],
    ids=str,
)
def test_options_that_are_unknown_or_contradict_each_other_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(GenerationError, match=message):
        DecodeOptions(**options)


BACKENDS = ["eager", pytest.param("native", marks=needs_compiler)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_torchs_default_type_changes_no_text(tiny_model: GPT, backend: str, dtype: torch.dtype) -> None:
    params = SamplingParams(max_new_tokens=12, logprobs=2)

    def texts() -> object:
        runtime = build_runtime(tiny_model, DecodeOptions(backend))
        sampled = complete(tiny_model, ["a", "bc"], params, runtime=runtime)
        return sampled, beam_search(runtime.runner(3), [1, 2], 3, 6)

    expected = texts()
    torch.set_default_dtype(dtype)
    try:
        assert texts() == expected
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model_left_in_training_mode_generates_without_dropout_and_stays_in_it(backend: str) -> None:
    model = GPT(tiny_config(dropout=0.5)).eval()
    expected = tokens_by(backend, model, max_new_tokens=20)
    model.train()
    model.h[0].eval()
    assert tokens_by(backend, model, max_new_tokens=20) == expected
    assert model.training
    assert model.h[1].attn.training
    assert not model.h[0].attn.training


FEW = CharTokenizer("\nabcdef")  # 7 ids of a model that has 23


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("options", [{}, {"temperature": 0}, {"top_k": 9}, {"top_p": 0.9, "repetition_penalty": 1.5}])
def test_ids_that_the_tokenizer_does_not_have_are_not_sampled(backend: str, options: dict[str, Any]) -> None:
    model = sharp_model(vocab_size=23)
    runtime = build_runtime(model, DecodeOptions(backend))
    params = SamplingParams(max_new_tokens=40, logprobs=9, **options)
    completions = complete(model, ["abc", "f"], params, [3, 4], runtime=runtime, tokenizer=FEW)
    for completion in completions:
        assert all(token.id < 7 and {index for index, _ in token.top} == set(range(7)) for token in completion.tokens)
        assert gpt.generation.text.UNKNOWN not in completion.text
    eager = build_runtime(model, DecodeOptions("eager"))
    others = complete(model, ["abc", "f"], params, [3, 4], runtime=eager, tokenizer=FEW)
    assert [other.text for other in others] == [completion.text for completion in completions]
    limited = params.model_copy(update={"seed": 3}).limited_to(FEW.vocab_size)
    ids = list(generate_tokens(model, "abc", limited, runtime, FEW))
    assert ids == [token.id for token in completions[0].tokens]
    assert SamplingParams(end_id=9).limited_to(7).ids == 10  # it still ends a text


def test_values_of_other_libraries_and_one_stop_string_are_accepted(tiny_model: GPT) -> None:
    expected = gpt.generate(tiny_model, LETTERS, "a", seed=3, temperature=0.5, max_new_tokens=30, stop=("e",))
    found = gpt.generate(
        tiny_model,
        LETTERS,
        "a",
        seed=np.int64(3),
        temperature=np.float32(0.5),
        max_new_tokens=torch.tensor(30),
        stop="e",
    )
    assert found == expected


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_is_refused_instead_of_hanging() -> None:
    program = """
import os, sys, torch
from gpt.config import ModelConfig, SamplingParams
from gpt.generation import generate_tokens
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


def test_looking_into_a_model_in_another_thread_disturbs_no_text(tiny_model: GPT) -> None:
    expected = tokens_by("auto", tiny_model, max_new_tokens=10)
    idx, stop = torch.tensor([[1, 2, 3]]), threading.Event()

    def look() -> None:
        while not stop.is_set():
            gpt.run_with_cache(tiny_model, idx)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for backend in ("auto", "eager") * 10:
            assert len(tokens_by(backend, tiny_model, max_new_tokens=10)) == 10
        assert tokens_by("auto", tiny_model, max_new_tokens=10) == expected
    finally:
        stop.set()
        thread.join()


@needs_compiler
def test_a_runtime_keeps_the_weights_it_was_built_with(tiny_model: GPT) -> None:
    runtime, params = build_runtime(tiny_model), SamplingParams(max_new_tokens=20)
    before = list(generate_tokens(tiny_model, [1], params, runtime))
    with torch.no_grad():
        tiny_model.lm_head.weight.mul_(-1)
    assert list(generate_tokens(tiny_model, [1], params, runtime)) == before
    assert list(generate_tokens(tiny_model, [1], params)) != before


@pytest.mark.parametrize("prompt", [b"abc", None, 3, [3], ["a", b"b"]])
def test_a_prompt_that_is_no_text_is_refused(tiny_model: GPT, prompt: Any) -> None:
    with pytest.raises(GenerationError, match=r"^the prompt is a [A-Za-z]+, expected a text"):
        generate(tiny_model, CharTokenizer("abc"), prompt)


def test_all_wrong_parameters_are_told_with_what_was_meant(tiny_model: GPT) -> None:
    with pytest.raises(GenerationError) as caught:
        generate(tiny_model, CharTokenizer("abc"), "a", max_tokens=3, top_p=7)
    assert str(caught.value) == (
        "top_p: got 7, expected less than or equal to 1; max_tokens: unknown key; did you mean max_new_tokens?"
    )


def test_tokens_follow_a_text_as_they_follow_its_ids(tiny_model: GPT) -> None:
    tokenizer, params = CharTokenizer("abc"), SamplingParams(max_new_tokens=5)
    expected = list(generate_tokens(tiny_model, [0, 2, 1], params))
    assert list(generate_tokens(tiny_model, "acb", params, tokenizer=tokenizer)) == expected
    assert list(generate_tokens(tiny_model, torch.tensor([[0, 2, 1]]), params)) == expected
