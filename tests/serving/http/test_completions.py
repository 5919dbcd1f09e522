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


def alone(model: tuple[GPT, Any], prompt: str = PROMPT, **params: object) -> str:
    """Return what `gpt.generate` writes."""
    runtime = build_runtime(model[0], DecodeOptions("eager"))
    return gpt.generate(*model, prompt, runtime=runtime, **{"temperature": 0.8, **params})


def create(served: Served, **options: Any) -> Any:
    return served.client().completions.create(**{"model": "second", "prompt": PROMPT, **options})


@pytest.mark.parametrize("params", [{}, {"temperature": 0}, {"top_p": 0.5}, {"top_k": 3}, {"min_p": 0.2}])
def test_a_completion_is_the_text_that_generate_writes(server: Served, char_model: CharModel, params: dict) -> None:
    answer = create(server, max_tokens=40, seed=7, extra_body=params)
    assert answer.choices[0].text == alone(char_model, max_new_tokens=40, seed=7, **params)
    assert (answer.choices[0].finish_reason, answer.choices[0].logprobs) == ("length", None)
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (9, 40, 49)


def test_without_a_seed_the_text_differs_and_the_answer_says_which_it_was(server: Served) -> None:
    first, second = (create(server, max_tokens=40) for _ in range(2))
    assert first.choices[0].text != second.choices[0].text
    again = create(server, max_tokens=40, seed=first.choices[0].model_extra["seed"])
    assert again.choices[0].text == first.choices[0].text


def test_several_prompts_and_seeds_are_answered_in_order(server: Served, char_model: CharModel) -> None:
    prompts = ["It was", "Who", "the worst of rooms", ""]
    answer = create(server, prompt=prompts, max_tokens=9, n=2, seed=3)
    texts = [alone(char_model, prompt, max_new_tokens=9, seed=3 + n) for prompt in prompts for n in range(2)]
    assert [choice.text for choice in answer.choices] == texts
    assert len(set(texts)) == 8
    assert [choice.index for choice in answer.choices] == list(range(8))
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6 + 3 + 18, 72)


def test_token_ids_are_prompts_too(server: Served, char_model: CharModel) -> None:
    ids = char_model[1].encode(PROMPT).tolist()
    one, two = (create(server, prompt=prompt, max_tokens=9, seed=3) for prompt in (ids, [ids, ids[:3]]))
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


@pytest.mark.parametrize("prompt", [[PROMPT], [PROMPT, "It"]])
def test_echo_begins_with_the_prompt(server: Served, prompt: list[str]) -> None:
    plain, echoed = (create(server, prompt=prompt, max_tokens=9, seed=3, echo=echo).choices for echo in (False, True))
    assert [choice.text for choice in echoed] == [
        part + choice.text for part, choice in zip(prompt, plain, strict=True)
    ]


@pytest.mark.parametrize("count", [0, 1, 5])
def test_logprobs_are_those_of_the_text(server: Served, char_model: CharModel, count: int) -> None:
    choice = create(server, max_tokens=9, seed=3, logprobs=count).choices[0]
    logprobs = choice.logprobs
    assert "".join(logprobs.tokens) == choice.text
    assert logprobs.text_offset == list(range(9))
    expected = score_text(*char_model, PROMPT + choice.text).logprobs[len(PROMPT) - 1 :]
    assert logprobs.token_logprobs == pytest.approx(expected, abs=1e-4)
    for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert count <= len(top) <= count + 1
        assert top[token] == logprob


@pytest.mark.parametrize("stream", [False, True])
def test_too_many_logprobs_are_refused_before_anything_is_sent(server: Served, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError, match="logprobs"):
        create(server, logprobs=21, stream=stream)


@pytest.mark.parametrize("count", [0, 5])
def test_echo_with_logprobs_scores_a_text(server: Served, char_model: CharModel, count: int) -> None:
    prompt = "It was the best of rooms"
    answer = create(server, prompt=prompt, max_tokens=count, echo=True, logprobs=2, seed=2)
    choice, text = answer.choices[0], prompt + alone(char_model, prompt, max_new_tokens=count, seed=2) * (count > 0)
    assert (choice.text, choice.finish_reason, answer.usage.completion_tokens) == (text, "length", count)
    assert choice.logprobs.tokens == list(text)
    assert choice.logprobs.text_offset == list(range(len(text)))
    assert choice.logprobs.token_logprobs[0] is choice.logprobs.top_logprobs[0] is None
    assert choice.logprobs.token_logprobs[1:] == pytest.approx(score_text(*char_model, text).logprobs, abs=1e-4)


def test_a_prompt_that_is_cropped_is_shown_whole(server: Served, char_model: CharModel) -> None:
    prompt = CORPUS[:80]
    answer = server.post(prompt=prompt, max_tokens=5, seed=2, echo=True, logprobs=1, long_prompt="crop")
    choice = answer.json()["choices"][0]
    assert choice["text"] == prompt + alone(char_model, prompt[-64:], max_new_tokens=5, seed=2)
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    known = [logprob is not None for logprob in choice["logprobs"]["token_logprobs"]]
    assert known == [False] * 17 + [True] * 68


@pytest.mark.parametrize("places", [[(9, 10)], [(90, 95), (40, 43)], [(30, 33), (31, 33)]])
def test_a_stop_string_ends_a_text_and_is_not_in_it(
    server: Served, char_model: CharModel, places: list[tuple[int, int]]
) -> None:
    whole = alone(char_model, max_new_tokens=300, seed=1)
    stops = [whole[begin:end] for begin, end in places]
    end = min(whole.find(text) + len(text) for text in stops)
    end -= max(len(text) for text in stops if whole[:end].endswith(text))
    request = {"max_tokens": 300, "seed": 1, "stop": stops if len(stops) > 1 else stops[0], "logprobs": 0}
    choice = create(server, **request).choices[0]
    chunks = [chunk.choices[0] for chunk in create(server, **request, stream=True)]
    assert choice.text == "".join(choice.logprobs.tokens) == whole[:end]
    assert "".join(chunk.text for chunk in chunks) == whole[:end]
    assert [token for chunk in chunks for token in chunk.logprobs.tokens] == choice.logprobs.tokens
    assert choice.finish_reason == chunks[-1].finish_reason == "stop"


def test_a_window_that_is_full_ends_a_text_where_that_is_asked_for(server: Served) -> None:
    choice = create(server, max_tokens=300, extra_body={"overflow": "stop"}).choices[0]
    assert len(PROMPT + choice.text) == 65  # the last token is sampled, and not read
    assert choice.finish_reason == "length"


@pytest.mark.parametrize("options", [{}, {"n": 2, "stop": ["e "]}, {"logprobs": 2}, {"echo": True, "logprobs": 1}])
def test_a_stream_is_the_answer_in_parts(server: Served, options: dict) -> None:
    request = {"prompt": [PROMPT, "It"], "max_tokens": 50, "seed": 11, **options}
    whole, chunks = create(server, **request), list(create(server, **request, stream=True))
    assert len({chunk.id for chunk in chunks}) == 1
    for choice in whole.choices:
        parts = [part for chunk in chunks for part in chunk.choices if part.index == choice.index]
        assert "".join(part.text for part in parts) == choice.text
        assert [part.finish_reason for part in parts] == [None] * (len(parts) - 1) + [choice.finish_reason]
        if choice.logprobs is not None:
            for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
                joined = [value for part in parts for value in getattr(part.logprobs, name)]
                assert joined == getattr(choice.logprobs, name)


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
def test_the_usage_of_a_stream_comes_last_and_only_where_it_is_asked_for(server: Served, options: dict | None) -> None:
    request = {"max_tokens": 12, "stream": True}
    plain = list(create(server, **request, stream_options=options))
    assert all(chunk.usage is None and len(chunk.choices) == 1 for chunk in plain)
    *chunks, last = create(server, **request, stream_options={"include_usage": True})
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == []
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == (9, 12, 21)


@pytest.mark.parametrize("options", [{"include_usage": True}, {"include_usage": False}, {}])
@pytest.mark.parametrize("stream", [{}, {"stream": False}, {"stream": None}])
def test_stream_options_without_a_stream_are_refused(server: Served, options: dict, stream: dict) -> None:
    with pytest.raises(openai.BadRequestError, match="stream_options"):
        create(server, stream_options=options, **stream)


def test_fields_that_are_null_are_as_if_left_out(server: Served) -> None:
    nulls = dict.fromkeys(set(CompletionRequest.model_fields) - {"prompt", "seed"})
    plain, given = (server.post(prompt=PROMPT, seed=3, **fields).json() for fields in ({}, nulls))
    assert given["choices"] == plain["choices"]
    assert len(given["choices"][0]["text"]) == 16  # as the protocol says


def test_no_character_is_cut_in_a_stream(byte_server: Served, byte_model: tuple[GPT, ByteTokenizer]) -> None:
    request = {"prompt": "é", "max_tokens": 200, "seed": 4, "logprobs": 0}
    whole, chunks = create(byte_server, **request).choices[0], create(byte_server, **request, stream=True)
    assert whole.text == "".join(chunk.choices[0].text for chunk in chunks)
    assert whole.text == alone(byte_model, "é", max_new_tokens=200, seed=4)
    assert len(whole.logprobs.tokens) == 200
    assert any(token.startswith("bytes:\\x") for token in whole.logprobs.tokens)
