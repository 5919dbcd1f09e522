"""Bodies as other programs send them, taken down from runs against this server."""

from typing import Any

import pytest

from gpt.api.scoring import score_text
from http_server import CharModel, Served

ASKED = {"role": "user", "content": "Who keeps"}
USAGE = {"include_usage": True, "continuous_usage_stats": True}
SPELT_OUT = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "seed": None,
    "logprobs": None,
    "top_p": 1,
}
ANSWERED = {
    "role": "assistant",
    "content": "the keys",
    "refusal": None,
    "annotations": None,
    "audio": None,
}

COMPLETIONS: dict[str, dict[str, Any]] = {
    "guidellm 0.8.1": {
        "max_tokens": 30,
        "ignore_eos": True,
        "stream": True,
        "stream_options": USAGE,
    },
    "langchain-openai 1.7.4": {"max_tokens": 12, "n": 1, "temperature": 0.7, **SPELT_OUT},
    "lm-eval 0.4.13": {"max_tokens": 20, "temperature": 0, "stop": ["\n"], "seed": 1234},
}
CHATS: dict[str, dict[str, Any]] = {
    "guidellm 0.8.1": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Who keeps"}]}],
        "max_completion_tokens": 30,
        "ignore_eos": True,
        "stream": True,
        "stream_options": USAGE,
    },
    "langchain-openai 1.7.4": {
        "messages": [{"role": "system", "content": "It was"}, ASKED],
        "max_completion_tokens": 12,
        "stream": False,
        "logprobs": True,
        "top_logprobs": 2,
    },
    "openai 3.57.0": {
        "messages": [ASKED, {**ANSWERED, "function_call": None, "tool_calls": None}, ASKED],
        "max_tokens": 5,
        "n": 2,
    },
}


@pytest.mark.parametrize("program", COMPLETIONS)
def test_completion_that_a_program_asks_for_is_written(server: Served, program: str) -> None:
    answer = server.post(model="first", prompt="Who keeps", **COMPLETIONS[program])
    assert answer.status_code == 200, answer.text
    assert "error" not in answer.text


@pytest.mark.parametrize("program", CHATS)
def test_chat_that_a_program_asks_for_is_written(server: Served, program: str) -> None:
    answer = server.post("/v1/chat/completions", model="first", **CHATS[program])
    assert answer.status_code == 200, answer.text
    assert "error" not in answer.text


def test_lm_eval_gets_the_log_likelihood_of_a_text(server: Served, char_model: CharModel) -> None:
    """Its loglikelihood and loglikelihood_rolling: of texts given as ids, after
    `custom_prefix_token_id`.
    """
    text = "It was the worst of rooms"
    asked = {"temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    (prefix,) = server.post("/tokenize", prompt="\n").json()["tokens"]
    ids = server.post("/tokenize", prompt=text).json()["tokens"]
    answer = server.post(model="first", prompt=[[prefix, *ids]], **asked)
    logprobs = answer.json()["choices"][0]["logprobs"]
    assert sum(logprobs["token_logprobs"][1:-1]) == pytest.approx(
        score_text(*char_model, "\n" + text).logprob, rel=1e-4
    )
    for logprob, top in zip(
        logprobs["token_logprobs"][1:-1], logprobs["top_logprobs"][1:-1], strict=True
    ):
        assert logprob in top.values()
    # there is no other id to begin with
    without = server.post(model="first", prompt=[[None, *ids]], **asked)
    assert without.status_code == 400
    assert without.json()["error"]["message"].startswith(
        "prompt[0][0]: Input should be a valid integer"
    )
