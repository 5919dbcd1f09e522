"""What the server says of itself: health, the OpenAPI document, and the page of it."""

import re

from http_server import Served


def test_the_openapi_document_names_every_endpoint_and_only_this_shape_of_error(server: Served) -> None:
    with server.http() as client:
        document = client.get("/openapi.json").json()
    protocol = {path for path in document["paths"] if not path.startswith("/api/")}  # the rest is the playground's
    assert protocol == {"/v1/completions", "/v1/models", "/v1/models/{name}", "/health", "/metrics"}
    for operations in document["paths"].values():
        for operation in operations.values():
            assert operation["description"]
            assert set(operation["responses"]) == {"200", "default"}
            assert operation["responses"]["200"]["content"]
    assert document["components"]["schemas"]["ReadingRequest"]["properties"]["text"]["minLength"] == 1


def test_the_page_documents_every_field_and_needs_nothing_from_elsewhere(server: Served) -> None:
    with server.http() as client:
        page = client.get("/docs").text
        schemas = client.get("/openapi.json").json()["components"]["schemas"]
    for field in schemas["CompletionRequest"]["properties"]:
        assert f"<code>{field}</code>" in page
    assert not re.search(r"(src|href)=\"?(https?:|//)", page)
    for anchor in re.findall(r'href="#(\w+)"', page):
        assert f'id="{anchor}"' in page


def test_health_is_said_until_the_server_is_stopped_or_an_engine_fails(manual: Served) -> None:
    with manual.http() as client:
        assert client.get("/health").json() == {"status": "ok"}
        manual.engine.failure = RuntimeError("broken")
        assert "broken" in client.get("/health").json()["error"]["message"]
        manual.engine.failure, manual.drain.begun = None, True
        answer = client.get("/health")
        assert answer.status_code == 503
        assert "Retry-After" in answer.headers
        assert client.post("/v1/completions", json={"prompt": "It"}).status_code == 503
