"""What the server refuses: every answer has OpenAI's shape, and the next honest request is
answered.
"""

import gzip
import json
import zlib
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt.model import GPT
from gpt.system.errors import CheckpointError, DataError
from http_server import CharModel, ManualEngine, Serve, Served, assert_is_error, make_loaded
from patience import PATIENCE, examples

OK = {"prompt": "It was", "max_tokens": 3}
WRONG: dict[str, tuple[Any, ...]] = {
    "prompt": ([], ["a", 1], "Zürich", "\ud800", [[1], [-1]], [29], [10**30], "a" * 65),
    "n": (0, 65, 5_000_000),
    "max_tokens": (-1, 4097, 2**70),
    "logprobs": (21,),
    "temperature": (2.1, "1"),
    "top_p": (-0.1, 1.1, False),
    "top_k": (2**70, -2),
    "seed": (2**32, -2),
    "stop": ([""], ["a"] * 17, "a" * 257),
    "best_of": (2,),
    "suffix": ("x",),
    "logit_bias": ({"5": 101}, {"x": 1}, {"29": 1}),
    "presence_penalty": (2.5,),
    "temprature": (1,),
    "\ud800": (1,),
    "tools": ([{"type": "function"}],),
    "ignore_eos": (1,),
}


@pytest.mark.parametrize(
    ("param", "value"), [(param, value) for param, values in WRONG.items() for value in values]
)
def test_wrong_field_is_named(server: Served, param: str, value: Any) -> None:
    named = param.replace("\ud800", "\\ud800")
    message = assert_is_error(server.post(**{**OK, param: value}), 400, named)
    assert message.startswith(named)


ASKED = {"role": "user", "content": "It"}
PLACES: list[tuple[str, dict[str, Any], str]] = [
    (
        "completions",
        {"stream_options": {"include_usage": True, "speed": 1}},
        "stream_options.speed: not supported",
    ),
    ("completions", {"prompt": ["a", 1]}, "prompt[1]: Input should be a valid string"),
    ("completions", {"prompt": [[1], [2, -1]]}, "prompt[1][1]: Input should be greater"),
    ("completions", {"logit_bias": {"5": 0, "x": 1}}, "logit_bias.x: String should match"),
    ("completions", {"prompt": None}, "prompt: Field required"),
    (
        "completions",
        {"max_new_tokens": 5},
        "max_new_tokens: not supported; did you mean max_tokens?",
    ),
    (
        "completions",
        {"max_completion_tokens": -1},
        "max_completion_tokens: Input should be greater",
    ),
    ("chat/completions", {"top_logprobs": 2}, "top_logprobs: it needs logprobs"),
    ("chat/completions", {"promt": "It"}, "promt: not supported"),
    (
        "chat/completions",
        {"response_format": {"type": "json_object"}},
        "response_format: not supported",
    ),
    (
        "chat/completions",
        {"messages": [ASKED, {**ASKED, "tool_calls": [{}]}]},
        "messages[1].tool_calls: not supported",
    ),
    ("chat/completions", {"messages": [{"role": "user"}]}, "messages[0].content: Field required"),
    (
        "chat/completions",
        {"messages": [{**ASKED, "content": None}]},
        "messages[0].content: Field required",
    ),
    (
        "chat/completions",
        {"messages": [{**ASKED, "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0].image_url: not supported",
    ),
]


@pytest.mark.parametrize(("route", "wrong", "message"), PLACES)
def test_message_names_the_place_of_a_wrong_value(
    server: Served, route: str, wrong: dict[str, Any], message: str
) -> None:
    body = {"prompt": "It"} if route == "completions" else {"messages": [ASKED]}
    found = assert_is_error(
        server.post(f"/v1/{route}", **{**body, **wrong}), 400, next(iter(wrong))
    )
    assert found.startswith(message)


def test_text_without_ids_is_the_same_error_of_every_route(
    server: Served, byte_server: Served
) -> None:
    for served, text in ((server, "Zürich"), (server, "\ud800"), (byte_server, "\ud800")):
        message = assert_is_error(served.post(prompt=text), 400, "prompt")
        assert assert_is_error(served.post("/tokenize", prompt=text), 400, "prompt") == message
        for view in ("lens", "surprisal", "continue"):
            assert_is_error(served.post(f"/api/{view}", text=text), 400, "text")


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (DataError("no text"), 400, "no text"),
        (CheckpointError("a damaged file"), 500, "a damaged file"),
        (ZeroDivisionError("a secret"), 500, "POST /v1/completions"),
    ],
)
def test_error_that_no_endpoint_expects_has_the_shape_of_all(
    serve: Serve, error: Exception, status: int, words: str
) -> None:
    class Failing(ManualEngine):
        def submit(self, *arguments: Any) -> Any:
            raise error

    with serve(lambda loaded: Failing()) as served:
        message = assert_is_error(served.post(**OK), status, None, words)
        assert "secret" not in message
        assert served.get("/health").status_code == 200


def test_damaged_weights_are_named_where_a_prompt_is_scored(
    serve: Serve, char_model: CharModel
) -> None:
    broken = GPT(char_model[0].config).eval()
    broken.lm_head.weight.data.fill_(float("nan"))
    with serve(loaded=make_loaded(broken, char_model[1])) as served:
        for stream in (False, True):
            answer = served.post(**OK, echo=True, logprobs=1, stream=stream)
            assert_is_error(answer, 500, None, "position 0", "weights may be corrupt")


def test_compressed_body_is_415_in_one_line(server: Served) -> None:
    body = json.dumps(OK).encode()
    for coding, content in (
        ("gzip", gzip.compress(body)),
        ("deflate", zlib.compress(body)),
        ("br", b"\x8b\x02\x80"),
    ):
        answer = server.send(content, **{"Content-Encoding": coding})
        message = assert_is_error(answer, 415, None, coding, "without compression")
        assert "\n" not in message
    assert server.send(body, **{"Content-Encoding": "identity"}).status_code == 200


NO_REQUESTS = (
    b"",
    b"{",
    b"[]",
    b"null",
    b"7",
    b'{"prompt": NaN}',
    b'{"prompt":"It","temperature":NaN}',
    b"\xff",
)


def test_body_that_is_no_json_request_is_refused(server: Served) -> None:
    for content in (*NO_REQUESTS, b"[" * 100_000):
        answer = server.send(content)
        assert (answer.status_code, set(answer.json()["error"])) == (
            400,
            {"message", "type", "param", "code"},
        ), content
    for kind in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "",
    ):  # which other sites' pages may send unasked
        assert_is_error(server.send(json.dumps(OK), **{"Content-Type": kind}), 400)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
names = st.sampled_from(
    [
        "prompt",
        "max_tokens",
        "n",
        "logprobs",
        "stop",
        "seed",
        "temperature",
        "stream_options",
        "echo",
        "logit_bias",
    ]
)


@examples(0.25)
@given(content=st.binary(max_size=200) | st.dictionaries(names, json_values, max_size=4))
def test_no_body_makes_the_server_fail(server: Served, content: bytes | dict) -> None:
    body = (
        content
        if isinstance(content, bytes)
        else json.dumps({"prompt": "It", "max_tokens": 1, **content}).encode()
    )
    # by the simplest client, since the others take longer to make than to use
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)) as connection:
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        assert connection.getresponse().status in (
            (400,) if isinstance(content, bytes) else (200, 400)
        )


def test_unknown_path_or_method_is_an_error(server: Served) -> None:
    rows = (
        ("GET", "/nowhere", 404, None),
        ("GET", "/v1/completions", 405, "POST"),
        ("POST", "/health", 405, "GET"),
    )
    for method, path, status, allowed in rows:
        with server.http() as client:
            answer = client.request(method, path)
        assert_is_error(answer, status)
        assert answer.headers.get("Allow") == allowed


@pytest.mark.parametrize("name", ["third", "..%2fsecond"])
def test_unknown_model_is_404_everywhere(server: Served, name: str) -> None:
    answers = [server.get(f"/v1/models/{name}"), server.post(f"/api/models/{name}")]
    answers += [
        server.post(model=name, **OK),
        server.post("/api/generate", model=name, prompt="It"),
    ]
    for answer in (*answers, server.post("/api/lens", model=name, text="It")):
        assert_is_error(answer, 404, "model", "/v1/models")
        assert answer.json()["error"]["code"] == "model_not_found"


def test_long_name_is_shortened_in_a_message(server: Served) -> None:
    name = "x" * 307
    answers = [server.get(f"/{path}/{name}") for path in ("v1/models", "api/runs", "nowhere")]
    for answer in (*answers, server.post(model=name, **OK)):
        message = assert_is_error(answer, 404, answer.json()["error"]["param"])
        assert "xxx..." in message
        assert len(message) < 200


def test_full_queue_is_429_and_cancels_what_was_submitted(serve: Serve) -> None:
    with serve(lambda loaded: ManualEngine(room=2)) as served:
        answer = served.post(**OK, n=3)
        assert_is_error(answer, 429)
        assert int(answer.headers["Retry-After"]) >= 1
        assert served.engine.cancelled == served.engine.requests
