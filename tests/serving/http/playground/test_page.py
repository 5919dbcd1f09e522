"""The document at `/`: who gets it, and what it may do."""

import base64
import hashlib
import re

import pytest

from http_server import Serve, Served, real_engine


def test_the_policy_allows_the_script_and_the_style_of_the_page_and_no_other(server: Served) -> None:
    with server.http() as client:
        answer = client.get("/")
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for kind in ("script", "style"):
        (content,) = re.findall(f"<{kind}>(.*?)</{kind}>", answer.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert policy[f"{kind}-src"] == f"'sha256-{digest}'"


def test_the_page_names_no_other_address(server: Served) -> None:
    with server.http() as client:
        assert not re.search(r"(src|href|url)\s*[=(]\s*[\"']?(https?:)?//", client.get("/").text)


def test_the_page_is_open_where_all_else_needs_the_key(serve: Serve) -> None:
    with serve(real_engine, api_key="sesame") as served, served.http() as client:
        assert client.get("/").status_code == 200
        assert client.get("/v1/models").status_code == 401


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_it_can_only_be_read(server: Served, method: str) -> None:
    with server.http() as client:
        assert client.request(method, "/").status_code == 405
