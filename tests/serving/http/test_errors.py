"""What the server refuses: every answer has OpenAI's shape, and the next honest request is answered."""

import json
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_server import ManualEngine, Serve, Served, assert_is_error
from patience import PATIENCE, examples

OK = {"prompt": "It was", "max_tokens": 3}
WRONG: dict[str, tuple[Any, ...]] = {
    "prompt": ([], ["a", 1], "Zürich", "\ud800", [[1], [-1]], [29], [10**30], "a" * 65),
    "n": (0, 65, 5_000_000),
    "max_tokens": (-1, 4097, 2**70),
    "logprobs": (21,),
    "temperature": (2.1, "1"),
    "top_p": (0,),
    "top_k": (2**70,),
    "seed": (2**32,),
    "stop": ("", [""], ["a"] * 17, "a" * 257),
    "best_of": (2,),
    "suffix": ("x",),
    "logit_bias": ({"5": 101}, {"x": 1}, {"29": 1}),
    "presence_penalty": (2.5,),
    "temprature": (1,),
}


@pytest.mark.parametrize(("param", "value"), [(param, value) for param, values in WRONG.items() for value in values])
def test_wrong_field_is_named(server: Served, param: str, value: Any) -> None:
    message = assert_is_error(server.post(**{**OK, param: value}), 400, param)
    assert message.startswith(param)


NO_REQUESTS = (b"", b"{", b"[]", b"null", b"7", b'{"prompt": NaN}', b'{"prompt":"It","temperature":NaN}', b"\xff")


def test_body_that_is_no_json_request_is_refused(server: Served) -> None:
    for content in (*NO_REQUESTS, b"[" * 100_000):
        answer = server.send(content)
        assert (answer.status_code, set(answer.json()["error"])) == (400, {"message", "type", "param", "code"}), content
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):  # which other sites' pages may send unasked
        assert_is_error(server.send(json.dumps(OK), **{"Content-Type": kind}), 400)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(
    ["prompt", "max_tokens", "n", "logprobs", "stop", "seed", "temperature", "stream_options", "echo", "logit_bias"]
)


@examples(0.25)
@given(content=st.binary(max_size=200) | st.dictionaries(names, json_values, max_size=4))
def test_no_body_makes_the_server_fail(server: Served, content: bytes | dict) -> None:
    body = content if isinstance(content, bytes) else json.dumps({"prompt": "It", "max_tokens": 1, **content}).encode()
    # by the simplest client, since the others take longer to make than to use
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)) as connection:
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        assert connection.getresponse().status in ((400,) if isinstance(content, bytes) else (200, 400))


def test_unknown_path_or_method_is_an_error(server: Served) -> None:
    rows = (("GET", "/nowhere", 404, None), ("GET", "/v1/completions", 405, "POST"), ("POST", "/health", 405, "GET"))
    for method, path, status, allowed in rows:
        with server.http() as client:
            answer = client.request(method, path)
        assert_is_error(answer, status)
        assert answer.headers.get("Allow") == allowed


@pytest.mark.parametrize("name", ["third", "..%2fsecond"])
def test_unknown_model_is_404_everywhere(server: Served, name: str) -> None:
    answers = [server.get(f"{path}/{name}") for path in ("/v1/models", "/api/models")]
    answers += [server.post(model=name, **OK), server.post("/api/generate", model=name, prompt="It")]
    for answer in (*answers, server.post("/api/lens", model=name, text="It")):
        assert_is_error(answer, 404, "model", "/v1/models")
        assert answer.json()["error"]["code"] == "model_not_found"


def test_full_queue_is_429_and_cancels_what_was_submitted(serve: Serve) -> None:
    with serve(lambda loaded: ManualEngine(room=2)) as served:
        answer = served.post(**OK, n=3)
        assert_is_error(answer, 429)
        assert int(answer.headers["Retry-After"]) >= 1
        assert served.engine.cancelled == served.engine.requests
