"""The document at `/`: what it may do, what it says of a model, and where its views are found."""

import base64
import hashlib
import re
from collections.abc import Callable

import pytest

from browser import Page
from gpt.checkpoint import Loaded
from gpt.serving.http import playground
from http_server import CharModel, Serve, Served, assert_is_error


def test_the_page_asks_nobody_else_and_runs_no_other_script(server: Served) -> None:
    answer = server.get("/")
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for kind in ("script", "style"):
        (content,) = re.findall(f"<{kind}>(.*?)</{kind}>", answer.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert policy[f"{kind}-src"] == f"'sha256-{digest}'"
    assert not re.search(r"(src|href|url)\s*[=(]\s*[\"']?(https?:)?//", answer.text)


def test_a_model_is_described(server: Served, byte_server: Served, char_model: CharModel) -> None:
    model, tokenizer = char_model
    described = server.get("/api/models/second").json()
    assert 1 < len(tokenizer.encode(described.pop("example"))) <= 64
    assert described == {
        "model": "second",
        "step": 5,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "n_layer": 2,
        "n_head": 4,
        "block_size": 64,
        "vocab_size": tokenizer.vocab_size,
        "token": "character",
        "sample": {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    }
    of_bytes = byte_server.get("/api/models/first").json()
    assert (of_bytes["token"], of_bytes["vocab_size"]) == ("byte", 256)


def test_the_example_of_a_served_model_is_found_once(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Loaded] = []

    def find(loaded: Loaded) -> str:
        asked.append(loaded)
        return "It was"

    monkeypatch.setattr(playground, "example_of", find)
    with serve() as served:
        assert [served.get("/api/models/second").json()["example"] for _ in range(2)] == ["It was"] * 2
    assert len(asked) == 1


@pytest.mark.parametrize("name", ["nobody", "..%2fsecond"])
def test_a_model_that_is_not_there_is_an_error(server: Served, name: str) -> None:
    answer = server.get(f"/api/models/{name}")
    assert_is_error(answer, 404, "model", "/v1/models")
    assert answer.json()["error"]["code"] == "model_not_found"


TITLES = {
    "write": "Write",
    "picture": "Model",
    "attention": "Attention",
    "lens": "Logit lens",
    "learning": "Learning",
}


def test_an_address_opens_its_view_at_the_top(open_page: Callable[..., Page]) -> None:
    """Not where an element of the same id is, which a browser scrolls to."""
    page = open_page("lens", width=400, height=300)
    for address, title in TITLES.items():
        page.run(f"location.hash = ''; location.hash = '{address}'")
        page.wait_for(f"document.querySelector('h1').textContent === '{title}'")
        assert page.run(f"document.getElementById('{address}')") is None
        assert page.run("scrollY") == 0
