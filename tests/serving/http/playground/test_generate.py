"""`/api/generate`: the text of the completions endpoint, with what else was possible at each token."""

import json
import math
from typing import Any

import pytest
import torch

from gpt.config import SamplingParams
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer
from gpt.generation import SampledToken
from gpt.generation.sampling import next_token_probabilities
from gpt.inspection.views.tokens import labels_of, most_likely
from gpt.model import GPT
from gpt.serving.http.playground import generate
from gpt.serving.http.playground.generate import MAX_FED, DetailStream
from http_server import CharModel, Served, assert_is_error

SETTINGS = {"temperature": 0.7, "top_k": 6, "top_p": 0.9}
FIXED = {"min_p": 0.0, "repetition_penalty": 1.0, "overflow": "slide", "long_prompt": "crop"}


def events(served: Served, **body: Any) -> list[dict[str, Any]]:
    with served.http() as client, client.stream("POST", "/api/generate", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        *found, done = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert done == "[DONE]"
    return [json.loads(event) for event in found]


def tokens(served: Served, **body: Any) -> list[dict[str, Any]]:
    return [token for event in events(served, **body) for token in event["tokens"]]


def text_of(found: list[dict[str, Any]]) -> str:
    return "".join(token["text"] for token in found)


@pytest.mark.parametrize("settings", [{}, SETTINGS, {"temperature": 0.0}])
@pytest.mark.parametrize("prompt", ["It was", "", "x" * 100])
def test_the_text_is_that_of_the_completions_endpoint(
    server: Served, prompt: str, settings: dict[str, Any], char_model: CharModel
) -> None:
    prompt = prompt.replace("x", char_model[1].decode([5]))
    found = tokens(server, prompt=prompt, max_tokens=90, seed=5, **settings)
    asked = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, **settings, **FIXED}
    answer = server.post(prompt=prompt, max_tokens=90, seed=5, **asked)
    assert text_of([token for token in found if not token["isGiven"]]) == answer.json()["choices"][0]["text"]
    assert text_of([token for token in found if token["isGiven"]]) == (prompt or "\n")


def test_the_probabilities_are_those_of_the_model_and_of_sampling(server: Served, char_model: CharModel) -> None:
    model, tokenizer = char_model
    found = tokens(server, prompt="It was", max_tokens=40, seed=3, **SETTINGS)
    ids = [token["id"] for token in found]
    assert ids[:6] == tokenizer.encode("It was").tolist()
    labels = labels_of(tokenizer, range(model.vocab_size))
    with torch.inference_mode():
        logits = model(torch.tensor([ids]))[0]
    assert (found[0]["probability"], found[0]["own"], found[0]["sampled"]) == (None, [], [])
    for position, token in enumerate(found[1:]):
        own = logits[position].softmax(-1)
        sampled = next_token_probabilities(logits[position], SamplingParams(**SETTINGS))
        assert token["label"] == labels[token["id"]]
        assert token["probability"] == pytest.approx(float(own[token["id"]]), rel=1e-3, abs=1e-5)
        assert token["chance"] == pytest.approx(float(sampled[token["id"]]), rel=1e-3, abs=1e-5)
        for name, expected in (("own", own), ("sampled", sampled)):
            count = min(10, int((expected > 0).sum()))
            assert [p for _, _, p in token[name]] == pytest.approx(
                expected.sort(descending=True).values[:count].tolist(), rel=1e-3, abs=1e-5
            )
            assert all(label == labels[index] for index, label, _ in token[name])
            assert all(p == pytest.approx(float(expected[index]), rel=1e-3, abs=1e-5) for index, _, p in token[name])
        assert len(token["sampled"]) <= 6
    sampled_ids = [index for token in found[6:] for index, _, _ in token["sampled"] if index == token["id"]]
    assert sampled_ids == ids[6:]


def test_a_prompt_may_be_token_ids_and_known(server: Served, char_model: CharModel) -> None:
    whole = tokens(server, prompt="It was", max_tokens=8)
    assert tokens(server, prompt=char_model[1].encode("It was").tolist(), max_tokens=8) == whole
    assert tokens(server, prompt="It was", max_tokens=8, known=4) == whole[4:]
    assert tokens(server, prompt="It was", max_tokens=0, known=5) == whole[5:6]


def test_all_of_a_vocabulary_may_be_listed(server: Served, char_model: CharModel) -> None:
    size = char_model[0].vocab_size
    (token,) = tokens(server, prompt="It was", max_tokens=1, known=6, alternatives=size)
    assert sorted(index for index, _, _ in token["own"]) == list(range(size))
    assert sum(p for _, _, p in token["own"]) == pytest.approx(1, abs=1e-3)


def test_what_lies_before_the_window_has_no_probability(server: Served, char_model: CharModel) -> None:
    window = char_model[0].config.block_size
    found = tokens(server, prompt="It was\n" * 10, max_tokens=2)
    unknown = [index for index, token in enumerate(found) if token["probability"] is None]
    assert unknown == list(range(70 - window + 1))
    assert text_of(found[:70]) == "It was\n" * 10


def test_bytes_that_begin_a_character_have_no_text_of_their_own(
    byte_server: Served, byte_model: tuple[GPT, ByteTokenizer]
) -> None:
    found = tokens(byte_server, prompt="é€", max_tokens=30, seed=1)
    assert [(token["label"], token["text"]) for token in found[:5]] == [
        ("c3", ""), ("a9", "é"), ("e2", ""), ("82", ""), ("ac", "€")
    ]  # fmt: skip
    assert len(found) == 5 + 30
    unfinished = tokens(byte_server, prompt=[0xE2, 0x82], max_tokens=1)
    assert [(token["label"], token["text"]) for token in unfinished[:2]] == [("e2", ""), ("82", "")]


WRONG = [
    {"alternatives": 5000},
    *({"prompt": prompt} for prompt in (5, "\u0416", [10**6])),
    *({"max_tokens": count} for count in (10**6, -1)),
    *({"temperature": 3.0}, {"top_p": 0.0}, {"top_k": -1}, {"known": -1}, {"model": "nobody"}, {"stop": ["a"]}),
]


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_named(server: Served, wrong: dict[str, Any]) -> None:
    (param,) = wrong
    answer = server.post("/api/generate", **{"prompt": "It", **wrong})
    assert_is_error(answer, 404 if param == "model" else 400, param)


def test_a_slow_reader_holds_ten_alternatives_a_token_and_no_vocabulary(char_model: CharModel) -> None:
    model, tokenizer = char_model
    params = SamplingParams(top_k=5)
    details = DetailStream(tokenizer, model.vocab_size, params, given=0, known=0)
    top = tuple((index, -1.0 - index) for index in range(model.vocab_size))
    for _ in range(10):
        details.feed([SampledToken(0, -1.0, top)] * 50)
    assert sum(len(token.top) for token in details._fed) <= MAX_FED * model.vocab_size
    found = details.take(0)
    assert len(found) == 500
    assert [(len(token["own"]), len(token["sampled"])) for token in found] == [(10, 5)] * 500
    assert details.take(0) == []


def test_alternatives_are_found_only_for_tokens_that_are_described(
    char_model: CharModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[int] = []

    def count(probabilities: torch.Tensor, alternatives: int) -> list[list[tuple[int, float]]]:
        listed.append(len(probabilities))
        return most_likely(probabilities, alternatives)

    monkeypatch.setattr(generate, "most_likely", count)
    details = DetailStream(char_model[1], char_model[0].vocab_size, SamplingParams(), given=200, known=150)
    details.feed([SampledToken(0, -1.0, ((0, -1.0),))] * 100)
    details.feed([SampledToken(0, -1.0, ((0, -1.0),))] * 100)
    assert len(details.take(0)) == 50
    assert listed == [50, 50]  # by the model, and by sampling


def described(size: int, params: SamplingParams, *top: tuple[int, float], sampled: int = 0) -> dict[str, Any]:
    """Describe a token of a vocabulary of this size that comes with these probabilities of ids."""
    tokenizer = CharTokenizer("".join(map(chr, range(0x4E00, 0x4E00 + size))))
    details = DetailStream(tokenizer, size, params, given=0, known=0)
    logprobs = tuple((index, math.log(p)) for index, p in top)
    own = dict(logprobs).get(sampled, math.log(0.1))
    details.feed([SampledToken(sampled, own, logprobs)])
    (token,) = details.take(0)
    return token


def test_a_token_that_is_not_among_the_likeliest_has_its_chance_too() -> None:
    token = described(3, SamplingParams(temperature=0.5), (0, 0.7), (1, 0.2), sampled=2)
    assert token["chance"] == pytest.approx(0.1**2 / (0.7**2 + 0.2**2 + 0.1**2), rel=1e-4)


def test_a_large_vocabulary_is_described_by_its_likeliest_tokens() -> None:
    token = described(50, SamplingParams(temperature=2.0), (3, 0.5), (7, 0.3), sampled=3)
    assert [(index, p) for index, _, p in token["own"]] == [(3, pytest.approx(0.5)), (7, pytest.approx(0.3))]
    share = 0.5**0.5 / (0.5**0.5 + 0.3**0.5)
    assert [p for _, _, p in token["sampled"]] == pytest.approx([share, 1 - share], rel=1e-4)


@pytest.mark.parametrize("size", [1, 3])
def test_a_vocabulary_may_be_smaller_than_the_list(size: int) -> None:
    token = described(size, SamplingParams(), *((index, 1 / size) for index in range(size)))
    assert len(token["own"]) == len(token["sampled"]) == size
