"""Who may ask and for how much: pages of other sites, requests without the key, and what is too
large; the server's own word: health, its document.
"""

import json
import logging
import threading
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel, ValidationError

from gpt.checkpoint import Loaded
from gpt.data.tokenizers import CharTokenizer
from gpt.extras.serving.http.limits import Limits
from gpt.extras.serving.http.protocol import ChatRequest
from gpt.system.errors import CheckpointError
from http_server import (
    HEAD,
    CharModel,
    Serve,
    Served,
    assert_is_error,
    make_loaded,
    post_bytes,
    real_engine,
)
from patience import PATIENCE

OK = {"prompt": "It was", "max_tokens": 3}


def test_name_that_may_resolve_to_this_machine_is_refused(server: Served) -> None:
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1:8000", "[::1]:8000", "192.168.1.7"):
        assert server.get("/v1/models", Host=host).status_code == 200
        assert server.send(json.dumps(OK), Host=host).status_code == 200
    strange = (
        "[::1].evil.com",
        "localhost#.evil.com",
        "evil.com@localhost",
        "localhost:x",
        "[127.0.0.1",
        "[evil]",
        "",
    )
    for host in (
        "evil.example",
        "evil.example:80",
        "localhost.evil.example",
        "1.2.3.4.evil",
        *strange,
    ):
        assert server.get("/v1/models", Host=host).status_code == 403
        assert_is_error(server.send(json.dumps(OK), Host=host), 403)


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:1", "x://[", "https", None]
)
def test_only_pages_of_this_server_may_post(server: Served, origin: str | None) -> None:
    if origin == "https":
        origin = server.url.replace("http", "https")
    headers = {"Origin": origin or server.url}
    with server.http() as client:
        assert client.post("/v1/completions", json=OK, headers=headers).status_code == (
            403 if origin else 200
        )
        preflight = client.options("/v1/completions", headers=headers)
    assert preflight.status_code == (403 if origin else 405)
    assert not any(name.startswith("access-control") for name in preflight.headers)


def test_page_of_an_allowed_name_may_come_through_a_tls_proxy(serve: Serve) -> None:
    with serve(hosts=["Chat.lan"]) as served:
        for origin, status in (
            ("https://chat.lan", 200),
            ("https://other.lan", 403),
            ("https://localhost", 403),
        ):
            host = "chat.lan" if origin != "https://localhost" else "localhost"
            assert (
                served.send(b"", "/api/models/first", Origin=origin, Host=host).status_code
                == status
            )


def test_key_is_needed_for_all_but_the_page_and_health(serve: Serve) -> None:
    wrong = (
        "sesame",
        "Basic sesame",
        "Bearersesame",
        "Bearer",
        "Bearer a sesame",
        "Bearer sésame".encode(),
    )
    with serve(real_engine, api_key="sesame", hosts=["GPU-box.lan"]) as served:
        for path in ("/v1/models", "/openapi.json", "/api/runs"):
            answer = served.get(path)
            assert_is_error(answer, 401, None, "Authorization: Bearer KEY")
            assert answer.json()["error"]["code"] == "invalid_api_key"
        assert served.get("/").status_code == served.get("/health").status_code == 200
        for given in ("Bearer sesame", "bearer  sesame"):
            assert served.get("/v1/models", Authorization=given).status_code == 200
        for given in wrong:
            assert served.get("/v1/models", Authorization=given).status_code == 401  # type: ignore[arg-type]
        right = openai.OpenAI(
            base_url=f"{served.url}/v1", api_key="sesame", max_retries=0, timeout=PATIENCE
        )
        assert right.completions.create(model="second", prompt="It").choices[0].text
        assert served.get("/health", Host="gpu-box.lan:8000").status_code == 200
        assert served.get("/health", Host="other.lan").status_code == 403


def test_given_limits_are_kept(serve: Serve) -> None:
    limits = Limits(max_tokens=5, choices=2, body_bytes=1000, logprob_values=50)
    with serve(real_engine, limits=limits) as served:
        assert_is_error(served.post(prompt="It", max_tokens=6), 400, "max_tokens")
        assert_is_error(served.post(prompt="It", n=3), 400, "n")
        assert_is_error(served.post(prompt="I" * 1000), 413)
        wrong = served.post(prompt="It", max_tokens=5, n=2, logprobs=5)
        assert_is_error(wrong, 400, "logprobs", "log-probabilities in all")
        assert served.post(prompt="It", max_tokens=5, n=2, logprobs=4).status_code == 200


def test_prompt_that_is_shown_is_counted_for_each_completion(serve: Serve) -> None:
    with serve(real_engine, limits=Limits(values=3000, logprob_values=1000)) as served:
        crop = {"prompt": "I" * 1000, "long_prompt": "crop", "max_tokens": 1, "echo": True}
        assert served.post(**crop, n=2).status_code == 200
        assert_is_error(
            served.post(**crop, n=3), 400, "max_tokens", "3003 tokens", "the prompt in it included"
        )
        assert served.post(**{**crop, "prompt": "I" * 900}, logprobs=0, n=2).status_code == 200
        assert_is_error(served.post(**crop, logprobs=0, n=3), 400, "max_tokens", "3390 tokens")
        assert (
            served.post(prompt="I" * 49, echo=True, max_tokens=1, logprobs=4, n=4).status_code
            == 200
        )
        assert_is_error(
            served.post(prompt="I" * 50, echo=True, max_tokens=1, logprobs=4, n=4), 400, "logprobs"
        )
        wrong = served.post("/api/generate", prompt="I" * 200, max_tokens=1)
        assert_is_error(wrong, 400, "max_tokens", "4622 tokens")
        assert (
            served.post("/api/generate", prompt="I" * 200, max_tokens=1, known=200).status_code
            == 200
        )


def test_long_request_is_read_and_answered_beside_the_event_loop(
    serve: Serve, char_model: CharModel
) -> None:
    """The event loop could answer nobody else in the meantime; a thread lets others work."""
    model, tokenizer = char_model
    used: set[str] = set()

    class Watched(CharTokenizer):
        def encode_narrow(self, text: str) -> Any:
            used.add(threading.current_thread().name)
            return super().encode_narrow(text)

        def token_bytes(self, index: int) -> bytes:
            used.add(threading.current_thread().name)
            return super().token_bytes(index)

    long = {"prompt": "I" * 20_000}
    loaded = make_loaded(model, Watched(tokenizer.itos))
    completion = {**long, "long_prompt": "crop", "max_tokens": 0, "echo": True, "logprobs": 0}
    engine = real_engine(make_loaded(*char_model)(Path()))
    with serve(lambda loaded: engine, loaded=loaded) as served:
        bodies = {"/tokenize": long, "/v1/completions": completion, "/api/generate": long}
        for path, body in bodies.items():
            used.clear()
            assert served.post(path, **body).status_code == 200
            (thread,) = used
            assert thread.startswith("long-requests")


def test_requests_under_way_hold_a_bounded_number_of_bytes(serve: Serve) -> None:
    with serve(limits=Limits(held_bytes=50_000)) as served:
        long = {"prompt": "I" * 20_000, "long_prompt": "crop"}
        waiting = [served.connect(post_bytes(**long)) for _ in range(2)]
        for _ in waiting:
            served.engine.wait_for_request()
        answer = served.post(**long)
        assert_is_error(answer, 429, None, "requests of 50,000 bytes")
        assert answer.headers["Retry-After"] == "1"
        assert served.post("/tokenize", prompt="It").status_code == 200
        for number in range(len(waiting)):  # they may have come in either order
            served.engine.say("a", "stop", number)
        for connection in waiting:
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
            connection.close()
        served.wait_until(lambda: not served.services.active)
        with served.connect(post_bytes(**long)):
            served.engine.wait_for_request()


def test_object_of_a_hundred_thousand_wrong_fields_is_one_error(server: Served) -> None:
    many = {f"{number}": 1 for number in range(5000)}
    for wrong in (many, {"logit_bias": many}, {"stream_options": many}):
        assert_is_error(server.post(**{**OK, **wrong}), 400, None, " fields, more than 4,096")
    parts = [{"role": "user", "content": [{}] * 1000}]
    errors = validation_errors(ChatRequest, messages=parts)
    assert len(errors) < 10


def validation_errors(request: type[BaseModel], **body: Any) -> list[Any]:
    with pytest.raises(ValidationError) as caught:
        request.model_validate(body)
    return caught.value.errors()


def test_metrics_count_requests_tokens_and_seconds(serve: Serve) -> None:
    with serve(real_engine) as served:
        assert served.post(**OK).status_code == 200
        assert served.post(n=0, **OK).status_code == served.send(b"{").status_code == 400
        assert served.get("/nowhere/1").status_code == served.get("/nowhere/2").status_code == 404
        lines = [
            line.rsplit(" ", 1)
            for line in served.get("/metrics").text.splitlines()
            if line[0] != "#"
        ]
    path = "/v1/completions"
    found = {name: float(value) for name, value in lines}
    assert found[f'gpt_requests_total{{path="{path}",status="200"}}'] == 1
    assert found[f'gpt_requests_total{{path="{path}",status="400"}}'] == 2
    assert found['gpt_requests_total{path="none",status="404"}'] == 2
    assert found[f'gpt_request_seconds_count{{path="{path}"}}'] == 3
    assert found[f'gpt_first_byte_seconds_count{{path="{path}"}}'] == 3
    assert found['gpt_generated_tokens_total{model="first"}'] == 3
    assert found['gpt_running{model="first"}'] == found['gpt_waiting{model="first"}'] == 0


def test_health_has_a_head(server: Served) -> None:
    with server.http() as client:
        answer = client.head("/health")
    assert (answer.status_code, answer.content) == (200, b"")


def test_every_failure_of_the_server_is_logged_with_its_cause(
    serve: Serve,
    char_model: CharModel,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(folder: Path) -> Loaded:
        if "second" in folder.parts:
            raise CheckpointError("model.safetensors is cut off")
        return make_loaded(*char_model)(folder)

    with serve(loaded=load) as served:
        log = logging.getLogger("uvicorn.error")
        monkeypatch.setattr(log, "level", logging.ERROR)
        log.addHandler(caplog.handler)
        assert_is_error(served.post(model="second", **OK), 500, "model")
        assert "POST /v1/completions: 500: " in caplog.text
        assert "model.safetensors is cut off" in caplog.text
        served.engine.failure = RuntimeError("broken")
        assert_is_error(served.get("/health"), 503)
        assert "GET /health: 503: the engine of 'first' has failed: broken" in caplog.text
        log.removeHandler(caplog.handler)


def test_no_get_loads_a_model(manual: Served) -> None:
    """A page of another site can send a GET that no header gives away, by plain http to a name."""
    paths = manual.get("/openapi.json").json()["paths"]
    values = {"{name}": "second", "{step}": "1"}
    read = [path for path, methods in paths.items() if "get" in methods]
    for path in [*read, "/", "/docs", "/api/models/{name}"]:
        for name, value in values.items():
            path = path.replace(name, value)
        manual.get(f"{path}?basis=1")
    assert list(manual.models.loaded) == ["first"]
    assert manual.post("/api/models/second").status_code == 200
    assert list(manual.models.loaded) == ["first", "second"]


def test_other_sites_cause_no_work_unless_they_are_admitted(serve: Serve) -> None:
    for origins, status in (((), 403), (("https://chat.lan",), 200), (("*",), 200)):
        with serve(origins=origins) as served, served.http() as client:
            headers = {"Origin": "https://chat.lan", "Sec-Fetch-Site": "cross-site"}
            answers = [client.get("/v1/models", headers=headers), client.get("/", headers=headers)]
            assert [answer.status_code for answer in answers] == [status, 200]
            assert answers[0].headers["X-Content-Type-Options"] == "nosniff"
            assert ("Access-Control-Allow-Origin" in answers[0].headers) is bool(origins)
            asked = {**headers, "Access-Control-Request-Method": "POST"}
            assert client.options("/v1/completions", headers=asked).status_code == (
                200 if origins else 403
            )
            assert (
                client.options("/v1/completions", headers={**asked, "Host": "evil.com"}).status_code
                == 403
            )


def test_too_large_body_is_refused_before_it_is_read(server: Served) -> None:
    with server.connect(HEAD + b"Content-Length: 104857600\r\n\r\n") as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 413")
    assert_is_error(server.send(b" " * 65536 for _ in range(20)), 413)  # without a Content-Length


def test_protocol_is_documented_and_health_tells_of_failures(manual: Served) -> None:
    document = manual.get("/openapi.json").json()
    # The other paths are the playground's.
    protocol = {path for path in document["paths"] if not path.startswith("/api/")}
    models = {"/v1/models", "/v1/models/{name}"}
    assert protocol == {
        "/v1/completions",
        "/v1/chat/completions",
        *models,
        "/tokenize",
        "/version",
        "/health",
    }
    assert f"curl {manual.url}/v1/completions" in manual.get("/docs").text
    assert document["components"]["schemas"]["CompletionRequest"]["properties"]["top_k"][
        "description"
    ]
    assert manual.get("/health").json() == {"status": "ok"}
    manual.engine.failure = RuntimeError("broken")
    assert_is_error(manual.get("/health"), 503, None, "broken")
