"""`/api/models/{name}`: what the page says about a model."""

import pytest

from gpt.data.tokenizers import CharTokenizer
from gpt.model import GPT
from http_server import Served


def test_a_model_is_described(server: Served, char_model: tuple[GPT, CharTokenizer]) -> None:
    model, tokenizer = char_model
    with server.http() as client:
        facts = client.get("/api/models/second").json()
    assert facts == {
        "model": "second",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "n_layer": 2,
        "n_head": 4,
        "block_size": 64,
        "vocab_size": tokenizer.vocab_size,
        "token": "character",
        "sample": {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    }


def test_tokens_may_be_bytes(byte_server: Served) -> None:
    with byte_server.http() as client:
        facts = client.get("/api/models/first").json()
    assert (facts["token"], facts["vocab_size"]) == ("byte", 256)


@pytest.mark.parametrize("name", ["nobody", "..%2fsecond"])
def test_a_model_that_is_not_there_is_an_error(server: Served, name: str) -> None:
    with server.http() as client:
        answer = client.get(f"/api/models/{name}")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
