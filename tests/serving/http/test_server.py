"""What a server asks of the system, and what it says of itself: health, the OpenAPI document, and the page of it."""

import asyncio
import re

import pytest
from fastapi import FastAPI

from gpt.errors import GPTError
from gpt.serving.http.limits import Limits
from gpt.serving.http.metrics import Metrics
from gpt.serving.http.protocol import APIError
from gpt.serving.http.responses import ResponseRegistry
from gpt.serving.http.server import Server, allow_files, bind
from http_server import Served, assert_is_error
from patience import PATIENCE

resource = pytest.importorskip("resource", reason="Windows has no limit of open files")


@pytest.mark.parametrize(
    ("soft", "hard", "allowed"),
    [
        (256, 10_000, 1536),
        (256, 1000, 1000),
        (256, resource.RLIM_INFINITY, 1536),
        (1536, 10_000, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
    ],
)
def test_as_many_files_may_be_open_as_there_are_connections(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, allowed: int | None
) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda what: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda what, limit: limits.append(limit))
    allow_files(1536)
    assert limits == ([] if allowed is None else [(allowed, hard)])


def test_of_two_servers_at_one_port_the_second_is_refused_before_it_loads_a_model() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(GPTError, match=f"cannot listen at 127.0.0.1, port {port}"):
            bind("127.0.0.1", port).close()


def test_a_server_that_cannot_serve_does_not_say_that_it_does() -> None:
    said: list[str] = []
    bound = bind("127.0.0.1", 0)
    bound.close()
    app = FastAPI()
    app.state.responses = ResponseRegistry(Metrics(None), 0)  # type: ignore[arg-type]  # no model is asked for
    server = Server(app, Limits(), 0, said.append)
    with pytest.raises(OSError, match="Bad file descriptor"):
        asyncio.run(server.run(bound, lambda: said.append("serving")))
    assert said == []


def test_the_reference_documents_every_endpoint_and_field_and_needs_nothing_from_elsewhere(server: Served) -> None:
    document, page = server.get("/openapi.json").json(), server.get("/docs").text
    protocol = {path for path in document["paths"] if not path.startswith("/api/")}  # the rest is the playground's
    assert protocol == {"/v1/completions", "/v1/models", "/v1/models/{name}", "/health", "/metrics"}
    for operations in document["paths"].values():
        for operation in operations.values():
            assert operation["description"]
            assert set(operation["responses"]) == {"200", "default"}
            assert operation["responses"]["200"]["content"]
    schemas = document["components"]["schemas"]
    assert schemas["ReadingRequest"]["properties"]["text"]["minLength"] == 1
    for field in schemas["CompletionRequest"]["properties"]:
        assert f"<code>{field}</code>" in page
    assert not re.search(r"(src|href)=\"?(https?:|//)", page)
    for anchor in re.findall(r'href="#(\w+)"', page):
        assert f'id="{anchor}"' in page


def test_the_metrics_count_what_happened(server: Served) -> None:
    def value(name: str) -> float:
        lines = server.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    grown = {
        'gpt_requests_total{status="200"}': 1,
        "gpt_prompt_tokens_total": 6,
        "gpt_request_seconds_count": 1,
        "gpt_tokens_generated_total{": 8,
    }
    before = {name: value(name) for name in grown}
    server.post(prompt="It was", max_tokens=8, model="second")
    assert {name: value(name) - before[name] for name in grown} == grown
    assert value('gpt_blocks{model="second"}') > 0
    assert value("gpt_running{") == 0


def test_health_is_said_until_the_server_is_stopped_or_an_engine_fails(manual: Served) -> None:
    assert manual.get("/health").json() == {"status": "ok"}
    manual.engine.failure = RuntimeError("broken")
    assert_is_error(manual.get("/health"), 503, None, "broken")
    manual.engine.failure, manual.responses.stopping = None, True
    assert "Retry-After" in manual.get("/health").headers
    for path, body in (("/v1/completions", {"prompt": "It"}), ("/api/generate", {"prompt": "It"})):
        assert_is_error(manual.post(path, **body), 503, None, "stopped")


def test_a_shutdown_waits_for_what_was_let_in_before_it_has_a_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpt.serving.http.responses.POLL_SECONDS", 0)

    async def shut_down() -> None:
        responses = ResponseRegistry(Metrics(None), 10)  # type: ignore[arg-type]  # no model is asked for
        with responses.admit():
            drain = asyncio.create_task(responses.drain(PATIENCE))
            for _ in range(100):
                await asyncio.sleep(0)
            assert responses.stopping
            assert not drain.done()
            with pytest.raises(APIError), responses.admit():
                pass
        await asyncio.wait_for(drain, PATIENCE)

    asyncio.run(shut_down())
