"""Who may ask: pages of other sites may not, and without the key nobody may."""

import openai
import pytest

from http_server import Serve, Served, real_engine
from patience import PATIENCE

OK = {"prompt": "It was", "max_tokens": 3}


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example", "1.2.3.4.evil"])
def test_a_name_that_was_made_to_resolve_to_this_machine_is_refused(server: Served, host: str) -> None:
    with server.http() as client:
        assert client.get("/v1/models", headers={"Host": host}).status_code == 403
        answer = client.post("/v1/completions", json=OK, headers={"Host": host})
    assert answer.status_code == 403
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8000", "[::1]:8000", "192.168.1.7"])
def test_addresses_and_localhost_are_accepted(server: Served, host: str) -> None:
    with server.http() as client:
        assert client.get("/v1/models", headers={"Host": host}).status_code == 200


def test_a_name_that_was_allowed_is_accepted(serve: Serve) -> None:
    with serve(real_engine, hosts=["GPU-box.lan"]) as served, served.http() as client:
        assert client.get("/v1/models", headers={"Host": "gpu-box.lan:8000"}).status_code == 200
        assert client.get("/v1/models", headers={"Host": "other.lan"}).status_code == 403


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1", "x://["])
def test_a_page_of_another_site_may_not_post(server: Served, origin: str) -> None:
    with server.http() as client:
        assert client.post("/v1/completions", json=OK, headers={"Origin": origin}).status_code == 403
        preflight = client.options("/v1/completions", headers={"Origin": origin})
        assert preflight.status_code == 403
        assert not any(name.startswith("access-control") for name in preflight.headers)


def test_a_page_of_this_server_may_post(server: Served) -> None:
    with server.http() as client:
        assert client.post("/v1/completions", json=OK, headers={"Origin": server.url}).status_code == 200


def test_the_key_is_needed_for_everything_but_health(serve: Serve) -> None:
    with serve(real_engine, api_key="sesame") as served:
        with served.http() as client:
            for path in ("/v1/models", "/metrics", "/docs", "/openapi.json"):
                answer = client.get(path)
                assert answer.status_code == 401
                assert answer.json()["error"]["code"] == "invalid_api_key"
            assert client.get("/health").status_code == 200
            assert client.get("/v1/models", headers={"Authorization": "Bearer sesame"}).status_code == 200
            assert client.get("/v1/models", headers={"Authorization": "bearer  sesame"}).status_code == 200
            for wrong in (
                "Bearer sésame".encode(),
                "sesame",
                "Basic sesame",
                "Bearersesame",
                "Bearer",
                "Bearer a sesame",
            ):
                refused = client.get("/v1/models", headers={"Authorization": wrong})
                assert refused.status_code == 401
                assert refused.headers["WWW-Authenticate"].startswith("Bearer ")
                assert "Authorization: Bearer KEY" in refused.json()["error"]["message"]
        wrong = served.client()
        with pytest.raises(openai.AuthenticationError):
            wrong.completions.create(model="second", prompt="It")
        right = openai.OpenAI(base_url=f"{served.url}/v1", api_key="sesame", max_retries=0, timeout=PATIENCE)
        assert right.completions.create(model="second", prompt="It").choices[0].text


def test_the_openapi_document_says_what_needs_the_key(serve: Serve) -> None:
    with serve(real_engine, api_key="sesame") as served, served.http() as client:
        document = client.get("/openapi.json", headers={"Authorization": "Bearer sesame"}).json()
    (name,) = document["components"]["securitySchemes"]
    assert document["security"] == [{name: []}]
    needs_none = [
        path for path, operations in document["paths"].items() if operations.get("get", {}).get("security") == []
    ]
    assert needs_none == ["/health"]
