"""scripts/serve.py as a person starts and stops it."""

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

from cli.serving import started
from gpt.cli import serve
from patience import PATIENCE
from server_process import insist

LONG = {"prompt": "It", "max_tokens": 4000, "stream": True}


def events_of(lines: Iterator[str]) -> list[str]:
    return [line.removeprefix("data: ") for line in lines if line]


def test_a_run_is_served_as_sample_says_it_and_sigterm_lets_a_stream_finish(here: Path, run) -> None:
    with started(here) as (process, client):
        body = {"prompt": "It was", "max_tokens": 20, "seed": 3}
        text = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
        assert run("sample --prompt 'It was' --max-new-tokens 20 --seed 3 --json").json["text"] == text
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["tiny"]
        with client.stream("POST", "/v1/completions", json=LONG) as stream:
            lines = stream.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            while client.get("/health").status_code == 200:  # until the signal has arrived
                pass
            answer = client.post("/v1/completions", json={"prompt": "It"})
            assert answer.status_code == 503
            assert "Retry-After" in answer.headers
            *_, last, done = events_of(lines)
            assert done == "[DONE]"
            assert json.loads(last)["choices"][0]["finish_reason"] == "length"
        assert process.wait(PATIENCE) == 143


ENDLESS = {**LONG, "max_tokens": 4_000_000}


def test_a_deadline_ends_what_runs(trained: Path) -> None:
    with started(trained, "--max-tokens", "4000000", "--drain-seconds", "0.1") as (process, client):
        with client.stream("POST", "/v1/completions", json=ENDLESS) as stream:
            lines = stream.iter_lines()
            next(lines)
            process.send_signal(signal.SIGINT)
            *_, last, done = events_of(lines)
            assert json.loads(last)["error"]["type"] == "server_error"
            assert done == "[DONE]"
        assert process.wait(PATIENCE) == 130


def test_a_second_signal_ends_what_runs_or_is_unfinished_which_is_no_error(trained: Path) -> None:
    body = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"
    with started(trained, "--max-tokens", "4000000", "--drain-seconds", "600") as (process, client):
        with (
            socket.create_connection((client.base_url.host, client.base_url.port)) as unfinished,
            client.stream("POST", "/v1/completions", json=ENDLESS) as stream,
        ):
            unfinished.sendall(body)
            lines = stream.iter_lines()  # kept, since a generator that is dropped closes the connection
            next(lines)
            process.send_signal(signal.SIGINT)
            while client.get("/health").status_code == 200:
                pass
            assert insist(process, signal.SIGINT) == 130
        assert process.stderr is not None
        said = "SIGINT: 600 s for 1 running requests to finish; once more to stop at once\n"
        assert process.stderr.read() == said


def test_without_a_run_one_line_says_how_to_get_one(tmp_path: Path, monkeypatch, refuse) -> None:
    monkeypatch.chdir(tmp_path)
    assert "train first: gpt train" in refuse("serve")


def test_a_port_that_is_taken_is_one_line(here: Path, refuse) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen at 127.0.0.1, port {port}" in refuse(f"serve --port {port}")


def test_what_is_not_installed_is_one_line(monkeypatch, refuse) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda name: None)
    assert "pip install 'glassgpt[serve]'" in refuse("serve")
