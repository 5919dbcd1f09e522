"""Models of items over HTTP: a list begins and ends each item, and a chat is a conversation."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt.checkpoint import Loaded
from gpt.config import Config
from gpt.data.pairs import ANSWER, END_OF_TEXT, SIGNS, TURN
from gpt.data.tokenizers import CharTokenizer
from http_server import Serve, assert_is_error, real_engine
from tiny import sharp_model

CHARS = CharTokenizer([*"abcdefgh", END_OF_TEXT, ANSWER, TURN])
END = CHARS.stoi[END_OF_TEXT]
MODEL = sharp_model(vocab_size=CHARS.vocab_size, block_size=64)


def loaded(items: str, **sample: Any) -> Any:
    values = {"temperature": 0.0, "begin_id": END, "end_id": END, **sample}
    config = Config.model_validate({"data": {"items": items}, "sample": values})
    return lambda folder: Loaded(MODEL, CHARS, config, Path("run"), {"step": 1})


def greedy(prompt: str, count: int, ends: str) -> str:
    """Continue a prompt by plain forward passes, up to one of some characters."""
    ids = CHARS.encode(prompt).tolist()
    text = ""
    for _ in range(count):
        with torch.no_grad():
            ids.append(int(MODEL(torch.tensor([ids]))[0, -1].argmax()))
        char = CHARS.itos[ids[-1]]
        if char in ends:
            break
        text += char
    return text


def test_item_begins_after_the_mark_and_ends_before_it(serve: Serve) -> None:
    with serve(real_engine, loaded=loaded("paragraphs")) as served:
        for prompt in ("abc", "", "hg"):
            found = served.post(prompt=prompt, max_tokens=30).json()["choices"][0]["text"]
            assert found == greedy(END_OF_TEXT + prompt, 30, END_OF_TEXT)


def test_ids_of_a_prompt_are_taken_as_they_are(serve: Serve) -> None:
    with serve(real_engine, loaded=loaded("paragraphs")) as served:
        found = served.post(prompt=CHARS.encode("abc").tolist(), max_tokens=9).json()["choices"][0][
            "text"
        ]
        assert found == greedy("abc", 9, END_OF_TEXT)


@pytest.mark.parametrize("stop", [None, ["hhhh"]])
def test_chat_is_read_as_in_training_and_ends_at_its_marks(
    serve: Serve, stop: list[str] | None
) -> None:
    messages = [
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "de"},
    ]
    prompt = f"{END_OF_TEXT}ab{ANSWER}c{TURN}de{ANSWER}"
    with serve(real_engine, loaded=loaded("pairs", stop=(TURN,))) as served:
        body = {"messages": messages, "max_tokens": 40, "stop": stop}
        found = served.post("/v1/chat/completions", **body).json()["choices"][0]
        assert found["message"]["content"] == greedy(prompt, 40, END_OF_TEXT + TURN)


def test_chat_whose_roles_do_not_alternate_is_refused(serve: Serve) -> None:
    messages = [{"role": "user", "content": "ab"}] * 2
    with serve(real_engine, loaded=loaded("pairs", stop=(TURN,))) as served:
        answer = served.post("/v1/chat/completions", messages=messages)
        assert_is_error(answer, 400, "messages", "message 2 is the user's")


def logprobs_after_the_mark(text: str) -> list[float]:
    ids = CHARS.encode(END_OF_TEXT + text).tolist()
    with torch.no_grad():
        logprobs = MODEL(torch.tensor([ids]))[0].log_softmax(dim=-1)
    return [float(logprobs[place, index]) for place, index in enumerate(ids[1:])]


def test_echo_scores_a_text_after_the_mark_and_does_not_show_it(serve: Serve) -> None:
    with serve(real_engine, loaded=loaded("paragraphs")) as served:
        body = {"prompt": "abc", "echo": True, "logprobs": 0}
        found = served.post(max_tokens=0, **body).json()["choices"][0]
        assert found["text"] == "abc"
        assert found["logprobs"]["tokens"] == ["a", "b", "c"]
        assert found["logprobs"]["text_offset"] == [0, 1, 2]
        expected = pytest.approx(logprobs_after_the_mark("abc"), abs=1e-4)
        assert found["logprobs"]["token_logprobs"] == expected
        written = served.post(max_tokens=9, **body).json()["choices"][0]
        assert written["text"] == "abc" + greedy(END_OF_TEXT + "abc", 9, END_OF_TEXT)


def test_echo_of_a_text_beyond_the_window_has_the_offsets_of_the_text(serve: Serve) -> None:
    text = "abcdefgh" * 9
    with serve(real_engine, loaded=loaded("paragraphs")) as served:
        body = {"prompt": text, "echo": True, "logprobs": 0, "long_prompt": "crop"}
        found = served.post(max_tokens=0, **body).json()["choices"][0]
        assert found["text"] == text
        assert found["logprobs"]["text_offset"] == list(range(8, 72))


def test_playground_reads_and_continues_texts_after_the_mark(serve: Serve) -> None:
    with serve(real_engine, loaded=loaded("pairs", stop=(TURN,))) as served:
        marks = served.post("/api/models/first").json()["marks"]
        assert marks["kind"] == "answers"
        prompt = "ab" + marks["answer"]
        answer = served.post("/api/generate", prompt=prompt, max_tokens=40, temperature=0.0)
        events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
        tokens = [token for event in events[:-1] for token in json.loads(event)["tokens"]]
        read = END_OF_TEXT + prompt
        assert [token["text"] for token in tokens if token["isGiven"]] == list(read)
        written = "".join(token["text"] for token in tokens if not token["isGiven"])
        ends = END_OF_TEXT + TURN
        assert written.rstrip(ends) == greedy(read, 40, ends)
        view = served.post("/api/surprisal", text="ab" + SIGNS[ANSWER] + "c").json()
        assert view["labels"] == [SIGNS[END_OF_TEXT], "a", "b", SIGNS[ANSWER], "c"]
