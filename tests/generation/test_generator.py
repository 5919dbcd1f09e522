import math
from typing import Any

import pytest
import torch
from native_support import needs_compiler
from torch import nn

import gpt
from gpt.config import SamplingParams
from gpt.data import ByteTokenizer, CharTokenizer
from gpt.errors import DataError, DeviceError, GenerationError, InputError
from gpt.generation import DecodeOptions, TextBatch, build_runtime, complete, generate_tokens
from gpt.generation.sampling import next_token_probabilities, sample
from gpt.model import GPT
from tiny import tiny_config

LETTERS = CharTokenizer("\nabcdefghijklmnopqrstuv")  # 23 ids


def tokens_of(model: GPT, prompt: list[int], **params: object) -> list[int]:
    return list(generate_tokens(model, prompt, SamplingParams.model_validate(params)))


def test_tokens_are_those_of_the_loop_written_out(tiny_model: GPT) -> None:
    params = SamplingParams(max_new_tokens=40, temperature=0.9, top_k=7, seed=5, slide_chunk=1)
    generator = torch.Generator().manual_seed(5)
    ids = [3, 1, 4]
    for _ in range(40):
        with torch.no_grad():
            logits = tiny_model(torch.tensor([ids[-16:]]))[:, -1]  # 16 positions are all it has
        ids.append(int(sample(next_token_probabilities(logits, params), torch.rand(1, generator=generator))))
    assert tokens_of(tiny_model, [3, 1, 4], **params.model_dump()) == ids[3:]


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rope"])
def test_text_goes_on_past_the_window(position: str) -> None:
    model = GPT(tiny_config(position=position)).eval()
    assert len(tokens_of(model, list(range(20)), max_new_tokens=30)) == 30


def test_greedy_is_the_most_likely_token_whatever_the_seed(tiny_model: GPT) -> None:
    greedy = tokens_of(tiny_model, [2], temperature=0.0, max_new_tokens=12, seed=1)
    assert greedy == tokens_of(tiny_model, [2], temperature=0.0, max_new_tokens=12, seed=2)
    assert greedy[0] == int(tiny_model(torch.tensor([[2]]))[0, -1].argmax())


def test_a_seed_gives_its_text_alone_in_a_list_and_in_pieces(tiny_model: GPT) -> None:
    prompts = ["abc", "q", ""]
    together = gpt.generate(tiny_model, LETTERS, prompts, max_new_tokens=15, seed=9)
    alone = [gpt.generate(tiny_model, LETTERS, prompt, max_new_tokens=15, seed=9) for prompt in prompts]
    streamed = ["".join(gpt.stream(tiny_model, LETTERS, prompt, max_new_tokens=15, seed=9)) for prompt in prompts]
    assert together == alone == streamed
    assert len(set(together)) == 3


def test_sampling_leaves_torchs_generator_alone(tiny_model: GPT) -> None:
    before = torch.get_rng_state()
    gpt.generate(tiny_model, LETTERS, "a", max_new_tokens=5)
    assert torch.equal(before, torch.get_rng_state())


def test_an_empty_prompt_starts_after_a_line_end(tiny_model: GPT) -> None:
    options = {"max_new_tokens": 9, "seed": 3}
    assert gpt.generate(tiny_model, LETTERS, "", **options) == gpt.generate(tiny_model, LETTERS, "\n", **options)
    no_line_end = CharTokenizer("abcdefghijklmnopqrstuvw")
    from_a = gpt.generate(tiny_model, no_line_end, "a", **options)
    assert gpt.generate(tiny_model, no_line_end, "", **options) == from_a


def test_a_stop_text_ends_the_text_before_it(tiny_model: GPT) -> None:
    whole = gpt.generate(tiny_model, LETTERS, "a", max_new_tokens=30, seed=2)
    stop = whole[9:11]
    assert gpt.generate(tiny_model, LETTERS, "a", max_new_tokens=30, seed=2, stop=(stop,)) == whole[: whole.index(stop)]


def test_bytes_come_out_as_whole_characters() -> None:
    model = GPT(tiny_config(vocab_size=256)).eval()
    pieces = list(gpt.stream(model, ByteTokenizer(), "é", max_new_tokens=60, temperature=1.0))
    whole = gpt.generate(model, ByteTokenizer(), "é", max_new_tokens=60, temperature=1.0)
    assert "".join(pieces) == whole
    assert all(pieces)


def test_no_tokens_are_no_text(tiny_model: GPT) -> None:
    assert gpt.generate(tiny_model, LETTERS, "a", max_new_tokens=0) == ""


def test_unknown_characters_are_refused_by_the_call_itself(tiny_model: GPT) -> None:
    with pytest.raises(DataError, match="'€' at 1"):
        gpt.stream(tiny_model, LETTERS, "a€")


def test_an_empty_list_of_tokens_is_refused(tiny_model: GPT) -> None:
    with pytest.raises(GenerationError, match="at least one token"):
        tokens_of(tiny_model, [])


def test_a_token_outside_the_vocabulary_is_refused(tiny_model: GPT) -> None:
    with pytest.raises(InputError, match="23"):
        tokens_of(tiny_model, [23])


def test_logits_that_are_not_finite_are_an_error_that_names_the_position(tiny_model: GPT) -> None:
    with torch.no_grad():
        tiny_model.ln_f.weight.fill_(math.nan)
    with pytest.raises(GenerationError, match="position 2 are not finite"):
        tokens_of(tiny_model, [1, 2, 3])


def test_a_backend_that_there_is_not_is_refused() -> None:
    with pytest.raises(GenerationError, match="expected one of auto, eager, compiled, native"):
        DecodeOptions(backend="quantum")


@pytest.mark.parametrize("options", [{"kv_dtype": "fp8"}, {"prefill_chunk": 0}, {"prefill_chunk": -1}])
def test_options_that_make_no_sense_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(GenerationError, match="expected"):
        DecodeOptions(**options)  # type: ignore[arg-type]


def test_every_prompt_needs_its_seed(tiny_model: GPT) -> None:
    with pytest.raises(GenerationError, match="1 seeds for 2 prompts"):
        TextBatch(build_runtime(tiny_model), LETTERS, ["a", "b"], SamplingParams(), [1])


# --- who computes --------------------------------------------------------------------------------


def runtime_name(model: GPT, backend: str = "auto", **options: Any) -> tuple[str, list[str]]:
    lines: list[str] = []
    return build_runtime(model, DecodeOptions(backend, **options), report=lines.append).name, lines


@needs_compiler
def test_the_native_backend_is_taken_where_it_can_be(tiny_model: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    assert runtime_name(tiny_model)[0] == "native, fp32 cache"
    assert runtime_name(gpt.quantize(tiny_model, "int8"))[0] == "native, int8 weights, fp32 cache"
    assert runtime_name(tiny_model, kv_dtype="bf16")[0] == "native, bf16 cache"
    assert runtime_name(tiny_model, kv_dtype="fp16")[0] == "eager, fp16 cache"
    assert runtime_name(tiny_model, cache=False)[0] == "eager, no cache"
    assert runtime_name(tiny_model, "compiled") == (
        "compiled, fp32 cache",
        ["the first token waits for torch's compiler, about 20 s"],
    )
    monkeypatch.setattr("gpt.generation.runtime.why_not_compile", lambda device: "no C++ compiler was found")
    with pytest.raises(
        DeviceError, match=r"^no compiled backend: no C\+\+ compiler was found; take backend auto or eager$"
    ):
        runtime_name(tiny_model, "compiled")


@needs_compiler
def test_a_model_that_someone_looks_into_or_has_changed_is_run_as_it_is(tiny_model: GPT) -> None:
    handle = tiny_model.h[0].register_forward_hook(lambda *_: None)
    name, lines = runtime_name(tiny_model)
    assert name == "eager, fp32 cache"
    assert lines == [
        "no native backend, which is several times faster: "
        "the native backend does not call hooks, and the model has some"
    ]
    handle.remove()

    class Doubled(nn.Identity):
        pass

    tiny_model.softcap = Doubled()
    name, (line,) = runtime_name(tiny_model)
    assert name == "eager, fp32 cache"
    assert "does not know what Doubled computes" in line
    with pytest.raises(DeviceError, match=r"^no native backend: .* Doubled computes; take backend auto or eager$"):
        runtime_name(tiny_model, "native")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "native", "kv_dtype": "fp16"}, "the native backend needs a cache of fp32, bf16 or int8"),
        ({"backend": "native", "cache": False}, "the native backend needs a cache of fp32, bf16 or int8"),
        ({"backend": "compiled", "kv_dtype": "int8"}, "the compiled backend needs a cache of floats"),
        ({"backend": "compiled", "cache": False}, "the compiled backend needs a cache of floats"),
    ],
    ids=str,
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(GenerationError, match=message):
        DecodeOptions(**options)


def test_a_runtime_that_is_kept_generates_what_a_new_one_does(tiny_model: GPT) -> None:
    runtime = build_runtime(tiny_model)
    for prompts in ("a", ["a", "bc"]):
        expected = gpt.generate(tiny_model, LETTERS, prompts, max_new_tokens=9)
        assert gpt.generate(tiny_model, LETTERS, prompts, runtime=runtime, max_new_tokens=9) == expected


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_torchs_default_type_changes_no_text(tiny_model: GPT, dtype: torch.dtype) -> None:
    runtime, params = build_runtime(tiny_model), SamplingParams(max_new_tokens=12, logprobs=2)
    expected = complete(tiny_model, LETTERS, ["a", "bc"], params, runtime=runtime)
    torch.set_default_dtype(dtype)
    try:
        assert complete(tiny_model, LETTERS, ["a", "bc"], params, runtime=runtime) == expected
    finally:
        torch.set_default_dtype(torch.float32)


@needs_compiler
def test_a_runtime_keeps_the_weights_it_was_built_with(tiny_model: GPT) -> None:
    runtime, params = build_runtime(tiny_model), SamplingParams(max_new_tokens=20)
    before = list(generate_tokens(tiny_model, [1], params, runtime))
    with torch.no_grad():
        tiny_model.lm_head.weight.mul_(-1)
    assert list(generate_tokens(tiny_model, [1], params, runtime)) == before
    assert list(generate_tokens(tiny_model, [1], params)) != before
