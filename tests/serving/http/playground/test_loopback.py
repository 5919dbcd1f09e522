"""Who may start a training: nobody but a person at this machine, from the page of this server."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from gpt.serving.http.app import create_app
from gpt.serving.http.limits import Limits
from gpt.serving.http.playground import launcher
from gpt.serving.http.playground.training_api import is_loopback
from http_server import HEAD, Serve, Served
from serving.http.playground.training import TEXT, Site

START = {"recipe": "tiny", "text": TEXT}
CHANGES = [("/start", START), ("/stop", {"name": "a"}), ("/resume", {"name": "a"})]


@pytest.fixture(autouse=True)
def _nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_launch", lambda *arguments: pytest.fail("something was started"))


@pytest.fixture
def site(site: Site) -> Iterator[Site]:
    """As everywhere, and nothing is written there."""
    before = sorted(site.place.rglob("*"))
    yield site
    assert sorted(site.place.rglob("*")) == before


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
def test_another_machine_may_not_even_look(peer: str, manual: Served) -> None:
    async def ask() -> list[httpx2.Response]:
        app = create_app(manual.models, Limits(), hosts=["localhost"])
        transport = httpx2.ASGITransport(app=app, client=(peer, 1234))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            gets = [await client.get(f"/api/training{path}") for path in ("", "/choices")]
            return gets + [await client.post(f"/api/training{path}", json=body) for path, body in CHANGES]

    for answer in asyncio.run(ask()):
        assert "from the machine that the server runs on" in refused(answer)
        assert "token" not in answer.json()


OTHER_HOSTS = ("192.168.1.7:8000", "8.8.8.8", "[fe80::1]:8000", "0.0.0.0:8000")
OTHER_ORIGINS = ("null", "http://evil.example", "http://localhost:1", "https://127.0.0.1:1", "file://", "http://[", "")
FORMS = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "")
PROXIED = ("X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Forwarded", "Via")


@pytest.mark.parametrize(
    ("headers", "looking", "changing"),
    [
        ({"Host": "evil.example", "Origin": "http://evil.example"}, "not known as", "not known as"),
        *(({"Host": host, "Origin": f"http://{host}"}, *["at http://127.0.0.1"] * 2) for host in OTHER_HOSTS),
        *(({"Origin": origin}, "own page", "requests from pages of") for origin in OTHER_ORIGINS),
        *(({header: "127.0.0.1"}, "proxy", "proxy") for header in PROXIED),
        *(({"Content-Type": kind}, None, "application/json") for kind in FORMS),  # what a form can send
        *(({"X-Training-Token": token}, None, "reload the page") for token in ("", "x", "é".encode())),
    ],
)
def test_what_does_not_come_from_the_page_at_this_machine_is_refused(
    site: Site, headers: dict[str, Any], looking: str | None, changing: str
) -> None:
    for path in ("", "/choices"):
        answer = site.get(path, headers=headers)
        assert looking is None or ("token" not in answer.json() and looking in refused(answer))
    for path, body in CHANGES:
        assert changing in refused(site.post(path, body, **headers))


def test_the_token_is_needed_also_without_an_origin(site: Site) -> None:
    """As another program or an old browser might ask."""
    assert "reload the page" in refused(site.served.post("/api/training/start", **START))


def test_an_allowed_host_may_use_the_server_but_not_train(serve: Serve) -> None:
    with serve(hosts=["gpu-box.lan"]) as served:
        assert served.get("/api/runs", Host="gpu-box.lan").status_code == 200
        assert "http://127.0.0.1" in refused(served.get("/api/training", Host="gpu-box.lan"))


def test_every_server_has_a_token_of_its_own(site: Site, server: Served) -> None:
    assert "--no-training" in refused(server.get("/api/training"))
    assert len(site.get().json()["token"]) > 40


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
