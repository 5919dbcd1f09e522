"""Who may start a training: nobody but a person at this machine, from the page of this server."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gpt.data.tokenizers import CharTokenizer
from gpt.model import GPT
from gpt.serving.http.app import create_app
from gpt.serving.http.limits import Limits
from gpt.serving.http.models import Models
from gpt.serving.http.playground import launcher
from gpt.serving.http.playground.training_api import is_loopback
from http_server import HEAD, Serve, Served, make_loaded, real_engine
from serving.http.playground.training import TEXT, Site, make_place, training_site

START = {"recipe": "tiny", "text": TEXT}
CHANGES = [("/start", START), ("/stop", {"name": "a"}), ("/resume", {"name": "a"})]


@pytest.fixture(autouse=True)
def _nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_launch", lambda *arguments: pytest.fail("something was started"))


@pytest.fixture
def site(tmp_path: Path, runs: Path, char_model: tuple[GPT, CharTokenizer]) -> Iterator[Site]:
    with training_site(make_place(tmp_path), make_loaded(*char_model), runs) as site:
        yield site
        assert sorted(path.name for path in tmp_path.iterdir()) == ["configs", "data"]
        assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["books"]


def refused(answer: httpx2.Response) -> str:
    assert answer.status_code == 403, answer.text
    assert not any(name.startswith("access-control") for name in answer.headers)
    return str(answer.json()["error"]["message"])


OWN = ("127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1")
OTHERS = ("0.0.0.0", "::", "10.0.0.5", "192.168.1.7", "::ffff:10.0.0.5", "fe80::1", "localhost", "127.0.0.1.evil", "")


@pytest.mark.parametrize("address", [*OWN, *OTHERS])
def test_addresses_of_the_loopback_interface(address: str) -> None:
    assert is_loopback(address) is (address in OWN)


@pytest.mark.parametrize("peer", ["10.0.0.5", "::ffff:10.0.0.5", "fe80::1"])
def test_another_machine_may_not_even_look(
    peer: str, tmp_path: Path, runs: Path, char_model: tuple[GPT, CharTokenizer]
) -> None:
    async def ask() -> list[httpx2.Response]:
        models = Models(make_loaded(*char_model), real_engine, lambda: None, runs)
        app = create_app(models, Limits(), hosts=["localhost"])
        transport = httpx2.ASGITransport(app=app, client=(peer, 1234))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            gets = [await client.get(f"/api/training{path}") for path in ("", "/choices")]
            return gets + [await client.post(f"/api/training{path}", json=body) for path, body in CHANGES]

    for answer in asyncio.run(ask()):
        assert "from the machine that the server runs on" in refused(answer)
        assert "token" not in answer.json()


@pytest.mark.parametrize("host", ["192.168.1.7:8000", "8.8.8.8", "[fe80::1]:8000", "0.0.0.0:8000", "evil.example"])
def test_a_host_that_is_not_this_machine_is_refused(site: Site, host: str) -> None:
    for path in ("", "/choices"):
        refused(site.get(path, headers={"Host": host}))
    for path, body in CHANGES:
        refused(site.post(path, body, headers={"Host": host, "Origin": f"http://{host}"}))


def test_an_allowed_host_may_use_the_server_but_not_train(serve: Serve) -> None:
    with serve(real_engine, hosts=["gpu-box.lan"]) as served:
        assert served.get("/api/runs", Host="gpu-box.lan").status_code == 200
        assert "http://127.0.0.1" in refused(served.get("/api/training", Host="gpu-box.lan"))


ORIGINS = ["null", "http://evil.example", "http://localhost:1", "https://127.0.0.1:1", "file://", "http://[", ""]


@pytest.mark.parametrize("origin", ORIGINS)
def test_a_page_of_another_origin_can_neither_start_nor_read_the_token(site: Site, origin: str) -> None:
    for path, body in CHANGES:
        refused(site.post(path, body, headers={"Origin": origin}))
    assert "token" not in site.get(headers={"Origin": origin}).json()


def without(site: Site, *, token: str | None = None, kind: str = "application/json", **options: Any) -> httpx2.Response:
    """Post a start without an Origin, as another program or an old browser might."""
    headers = {"Content-Type": kind} | ({} if token is None else {"X-Training-Token": token})
    with site.served.http() as client:
        return client.post("/api/training/start", headers=headers, **options)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_what_a_form_can_send_is_refused_even_with_the_token(site: Site, kind: str) -> None:
    token = site.get().json()["token"]
    body = httpx2.Request("POST", "http://x", json=START).content
    assert "application/json" in refused(without(site, token=token, kind=kind, content=body))


@pytest.mark.parametrize("token", [None, "", "x", "é".encode()])
def test_the_token_is_needed(site: Site, token: Any) -> None:
    assert "reload the page" in refused(without(site, token=token, json=START))


def test_every_server_has_a_token_of_its_own(site: Site, server: Served) -> None:
    assert "--no-training" in refused(server.get("/api/training"))
    assert len(site.get().json()["token"]) > 40


@pytest.mark.parametrize("header", ["X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Forwarded", "Via"])
def test_what_came_through_a_proxy_is_refused(site: Site, header: str) -> None:
    assert "proxy" in refused(site.get(headers={header: "127.0.0.1"}))
    assert "proxy" in refused(site.post("/start", START, headers={header: "127.0.0.1"}))


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_nothing_starts_by_another_method(site: Site, method: str) -> None:
    headers = {"X-Training-Token": site.get().json()["token"]}
    with site.served.http() as client:
        assert client.request(method, "/api/training/start", headers=headers).status_code == 405


def test_a_large_text_is_accepted_and_a_larger_one_is_not(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = site.post("/start", {"recipe": "none", "text": "x" * (3 << 20)})
    assert "no recipe" in answer.json()["error"]["message"]
    assert site.post("/start", {"recipe": "none", "text": "x" * (33 << 20)}).status_code == 413
    assert site.post("/stop", {"name": "x" * (2 << 20)}).status_code == 413


def test_what_is_refused_is_not_read(site: Site) -> None:
    head = HEAD.replace(b"/v1/completions", b"/api/training/start") + b"Content-Length: 30000000\r\n\r\n"
    with site.served.connect(head) as connection:  # and no body
        assert b" 403 " in connection.recv(4096)
