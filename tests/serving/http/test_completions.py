"""`/v1/completions` as a client of the protocol sees it, with the real engine."""

from typing import Any

import openai
import pytest

import gpt
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer
from gpt.evaluation.scoring import score_text
from gpt.generation import build_runtime
from gpt.generation.backends.selection import DecodeOptions
from gpt.generation.text import TextStream
from gpt.model import GPT
from gpt.serving.http.protocol import CompletionRequest
from http_server import Served
from tiny import CORPUS

PROMPT = "Who keeps"
CharModel = tuple[GPT, CharTokenizer]


def alone(model: CharModel, prompt: str = PROMPT, **params: object) -> str:
    """Return what `gpt.generate` writes."""
    runtime = build_runtime(model[0], DecodeOptions("eager"))
    return gpt.generate(*model, prompt, runtime=runtime, **{"temperature": 0.8, **params})


def test_a_completion_is_the_text_that_generate_writes(server: Served, char_model: CharModel) -> None:
    answer = server.client().completions.create(model="second", prompt=PROMPT, max_tokens=40, seed=7)
    assert answer.choices[0].text == alone(char_model, max_new_tokens=40, seed=7)
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].logprobs is None
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (9, 40, 49)


def test_without_max_tokens_there_are_16_as_the_protocol_says(server: Served) -> None:
    assert len(server.client().completions.create(model="second", prompt=PROMPT).choices[0].text) == 16


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0}, {"top_p": 0.5}, {"extra_body": {"top_k": 3}}, {"extra_body": {"min_p": 0.2}}]
)
def test_sampling_parameters_have_their_effect(server: Served, char_model: CharModel, sampling: dict) -> None:
    answer = server.client().completions.create(model="second", prompt=PROMPT, max_tokens=30, seed=1, **sampling)
    params = {**sampling.get("extra_body", {}), **{name: sampling[name] for name in sampling if name != "extra_body"}}
    assert answer.choices[0].text == alone(char_model, max_new_tokens=30, seed=1, **params)


def test_n_completions_have_seeds_that_follow_each_other(server: Served, char_model: CharModel) -> None:
    answer = server.client().completions.create(model="second", prompt=PROMPT, max_tokens=20, n=3, seed=5)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    texts = [alone(char_model, max_new_tokens=20, seed=5 + index) for index in range(3)]
    assert [choice.text for choice in answer.choices] == texts
    assert len(set(texts)) == 3
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (9, 60)


def test_without_a_seed_the_text_differs_and_the_answer_says_which_it_was(server: Served) -> None:
    client = server.client()
    first, second = (client.completions.create(model="second", prompt=PROMPT, max_tokens=40) for _ in range(2))
    assert first.choices[0].text != second.choices[0].text
    seed = first.choices[0].model_extra["seed"]
    again = client.completions.create(model="second", prompt=PROMPT, max_tokens=40, seed=seed)
    assert again.choices[0].text == first.choices[0].text


def test_several_prompts_are_answered_in_order(server: Served, char_model: CharModel) -> None:
    prompts = ["It was", "Who", "the worst of rooms"]
    answer = server.client().completions.create(model="second", prompt=prompts, max_tokens=9, n=2, seed=3)
    assert [choice.text for choice in answer.choices] == [
        alone(char_model, prompt, max_new_tokens=9, seed=3 + index) for prompt in prompts for index in range(2)
    ]
    assert [choice.index for choice in answer.choices] == list(range(6))


def test_token_ids_are_prompts_too(server: Served, char_model: CharModel) -> None:
    ids = char_model[1].encode(PROMPT).tolist()
    client = server.client()
    one = client.completions.create(model="second", prompt=ids, max_tokens=9, seed=3)
    two = client.completions.create(model="second", prompt=[ids, ids[:3]], max_tokens=9, seed=3)
    assert one.choices[0].text == two.choices[0].text == alone(char_model, max_new_tokens=9, seed=3)
    assert two.choices[1].text == alone(char_model, PROMPT[:3], max_new_tokens=9, seed=3)


@pytest.mark.parametrize("ids", [[0xC3], [0x61, 0xE2, 0x82], [0xFF, 0x61]])
@pytest.mark.parametrize("logprobs", [None, 2])
def test_ids_that_are_those_of_no_text_are_prompts_too(byte_server: Served, ids: list[int], logprobs: Any) -> None:
    body = {"prompt": ids, "max_tokens": 30, "seed": 3, "logprobs": logprobs}
    plain, echoed = (byte_server.post(**body, echo=echo).json()["choices"][0] for echo in (False, True))
    shown = TextStream(ByteTokenizer()).begin(ids)
    assert echoed["text"] == shown + plain["text"]
    if logprobs is not None:
        assert echoed["logprobs"]["tokens"][len(ids) :] == plain["logprobs"]["tokens"]
        offsets = [offset - len(shown) for offset in echoed["logprobs"]["text_offset"][len(ids) :]]
        assert offsets == plain["logprobs"]["text_offset"]


def test_an_empty_prompt_starts_after_a_line_end(server: Served, char_model: CharModel) -> None:
    answer = server.client().completions.create(model="second", prompt="", max_tokens=9, seed=3)
    assert answer.choices[0].text == alone(char_model, "", max_new_tokens=9, seed=3)
    assert answer.usage.prompt_tokens == 0


@pytest.mark.parametrize("prompt", [PROMPT, [PROMPT, "It"]])
def test_echo_begins_with_the_prompt(server: Served, prompt: str | list[str]) -> None:
    plain, echoed = (
        server.client().completions.create(model="second", prompt=prompt, max_tokens=9, seed=3, echo=echo)
        for echo in (False, True)
    )
    prompts = [prompt] if isinstance(prompt, str) else prompt
    assert [choice.text for choice in echoed.choices] == [
        part + choice.text for part, choice in zip(prompts, plain.choices, strict=True)
    ]


@pytest.mark.parametrize("count", [0, 1, 5])
def test_logprobs_are_those_of_the_text(server: Served, char_model: CharModel, count: int) -> None:
    answer = server.client().completions.create(model="second", prompt=PROMPT, max_tokens=9, seed=3, logprobs=count)
    choice = answer.choices[0]
    logprobs = choice.logprobs
    assert "".join(logprobs.tokens) == choice.text
    assert logprobs.text_offset == list(range(9))
    expected = score_text(*char_model, PROMPT + choice.text).logprobs[len(PROMPT) - 1 :]
    assert logprobs.token_logprobs == pytest.approx(expected, abs=1e-4)
    for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert count <= len(top) <= count + 1
        assert top[token] == logprob


@pytest.mark.parametrize("count", [21, 1000, -1])
@pytest.mark.parametrize("stream", [False, True])
def test_too_many_logprobs_are_refused(server: Served, count: int, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError, match="logprobs"):
        server.client().completions.create(model="second", prompt=PROMPT, logprobs=count, stream=stream)
    assert server.client().completions.create(model="second", prompt=PROMPT).choices[0].text


def test_echo_with_logprobs_and_no_tokens_scores_a_text(server: Served, char_model: CharModel) -> None:
    text = "It was the best of rooms"
    answer = server.client().completions.create(model="second", prompt=text, max_tokens=0, echo=True, logprobs=2)
    choice = answer.choices[0]
    assert (choice.text, choice.finish_reason) == (text, "length")
    assert choice.logprobs.tokens == list(text)
    assert choice.logprobs.token_logprobs[0] is None
    assert choice.logprobs.top_logprobs[0] is None
    assert choice.logprobs.token_logprobs[1:] == pytest.approx(score_text(*char_model, text).logprobs, abs=1e-4)
    assert answer.usage.completion_tokens == 0


def test_echo_with_logprobs_goes_on_after_the_prompt(server: Served) -> None:
    answer = server.client().completions.create(
        model="second", prompt=PROMPT, max_tokens=5, echo=True, logprobs=0, seed=2
    )
    assert "".join(answer.choices[0].logprobs.tokens) == answer.choices[0].text
    assert answer.choices[0].logprobs.text_offset == list(range(len(PROMPT) + 5))


def test_a_prompt_that_is_cropped_is_shown_whole(server: Served, char_model: CharModel) -> None:
    prompt = CORPUS[:80]
    whole = server.post(prompt=prompt, max_tokens=5, seed=2, echo=True, logprobs=1, long_prompt="crop").json()
    choice = whole["choices"][0]
    assert choice["text"] == prompt + alone(char_model, prompt[-64:], max_new_tokens=5, seed=2)
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    known = [logprob is not None for logprob in choice["logprobs"]["token_logprobs"]]
    assert known == [False] * 17 + [True] * 68


@pytest.mark.parametrize("places", [[(9, 10)], [(90, 95), (40, 43)], [(30, 33), (31, 33)]])
@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_a_text_and_is_not_in_it(
    server: Served, char_model: CharModel, places: list[tuple[int, int]], stream: bool
) -> None:
    whole = alone(char_model, max_new_tokens=300, seed=1)
    stops = [whole[begin:end] for begin, end in places]
    end = min(whole.find(text) + len(text) for text in stops)
    end -= max(len(text) for text in stops if whole[:end].endswith(text))
    stop = stops[0] if len(stops) == 1 else stops
    created = server.client().completions.create(
        model="second", prompt=PROMPT, max_tokens=300, seed=1, stop=stop, stream=stream, logprobs=0
    )
    if stream:
        chunks = list(created)
        assert "".join(chunk.choices[0].text for chunk in chunks) == whole[:end]
        tokens = [token for chunk in chunks for token in chunk.choices[0].logprobs.tokens]
        assert chunks[-1].choices[0].finish_reason == "stop"
    else:
        assert created.choices[0].text == whole[:end]
        tokens = created.choices[0].logprobs.tokens
        assert created.choices[0].finish_reason == "stop"
    assert "".join(tokens) == whole[:end]


def test_a_window_that_is_full_ends_a_text_where_that_is_asked_for(server: Served) -> None:
    answer = server.client().completions.create(
        model="second", prompt=PROMPT, max_tokens=300, extra_body={"overflow": "stop"}
    )
    assert len(PROMPT + answer.choices[0].text) == 65  # the last token is sampled, and not read
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize("options", [{}, {"n": 2}, {"logprobs": 2}, {"echo": True, "logprobs": 1}, {"stop": "e"}])
def test_a_stream_is_the_answer_in_parts(server: Served, options: dict) -> None:
    request = {"model": "second", "prompt": [PROMPT, "It"], "max_tokens": 50, "seed": 11, **options}
    whole = server.client().completions.create(**request)
    chunks = list(server.client().completions.create(**request, stream=True))
    assert len({chunk.id for chunk in chunks}) == 1
    for choice in whole.choices:
        parts = [part for chunk in chunks for part in chunk.choices if part.index == choice.index]
        assert "".join(part.text for part in parts) == choice.text
        reasons = [part.finish_reason for part in parts if part.finish_reason is not None]
        assert reasons == [choice.finish_reason]
        assert parts[-1].finish_reason is not None
        if choice.logprobs is not None:
            for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
                joined = [value for part in parts for value in getattr(part.logprobs, name)]
                assert joined == getattr(choice.logprobs, name)


def test_the_usage_of_a_stream_comes_last_and_only_where_it_is_asked_for(server: Served) -> None:
    request = {"model": "second", "prompt": PROMPT, "max_tokens": 12, "stream": True}
    plain = list(server.client().completions.create(**request))
    assert all(chunk.usage is None and chunk.choices for chunk in plain)
    *chunks, last = server.client().completions.create(**request, stream_options={"include_usage": True})
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == []
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == (9, 12, 21)


@pytest.mark.parametrize("options", [{"include_usage": True}, {"include_usage": False}, {}])
def test_stream_options_without_a_stream_are_refused(server: Served, options: dict) -> None:
    for stream in ({}, {"stream": False}, {"stream": None}):
        with pytest.raises(openai.BadRequestError, match="stream_options"):
            server.client().completions.create(model="second", prompt=PROMPT, stream_options=options, **stream)


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
def test_a_stream_without_usage_has_none(server: Served, options: dict | None) -> None:
    chunks = list(
        server.client().completions.create(model="second", prompt=PROMPT, stream=True, stream_options=options)
    )
    assert all(chunk.usage is None and len(chunk.choices) == 1 for chunk in chunks)


def test_fields_that_are_null_are_as_if_left_out(server: Served) -> None:
    nulls = dict.fromkeys(set(CompletionRequest.model_fields) - {"prompt", "seed"})
    plain, given = (server.post(prompt=PROMPT, seed=3, **fields).json() for fields in ({}, nulls))
    assert given["choices"] == plain["choices"]
    assert len(given["choices"][0]["text"]) == 16


def test_every_choice_of_a_stream_ends_once_and_in_its_own_time(server: Served) -> None:
    chunks = server.client().completions.create(
        model="second", prompt=["It", "Who"], n=3, seed=1, max_tokens=120, stop=["e "], stream=True
    )
    reasons: dict[int, list[str]] = {index: [] for index in range(6)}
    for chunk in chunks:
        for choice in chunk.choices:
            assert not reasons[choice.index], "text after the end"
            reasons[choice.index] += [choice.finish_reason] if choice.finish_reason else []
    assert all(len(ends) == 1 for ends in reasons.values())


def test_no_character_is_cut_in_a_stream(byte_server: Served, byte_model: tuple[GPT, ByteTokenizer]) -> None:
    request = {"model": "second", "prompt": "é", "max_tokens": 200, "seed": 4, "logprobs": 0}
    whole = byte_server.client().completions.create(**request).choices[0]
    chunks = list(byte_server.client().completions.create(**request, stream=True))
    runtime = build_runtime(byte_model[0], DecodeOptions("eager"))
    expected = gpt.generate(*byte_model, "é", max_new_tokens=200, temperature=0.8, seed=4, runtime=runtime)
    assert whole.text == "".join(chunk.choices[0].text for chunk in chunks) == expected
    assert len(whole.logprobs.tokens) == 200
    assert any(token.startswith("bytes:\\x") for token in whole.logprobs.tokens)
