"""scripts/serve.py as a person starts and stops it."""

import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from cli.serving import started
from gpt.cli import serve
from patience import PATIENCE

LONG = {"prompt": "It", "max_tokens": 1000, "stream": True}


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
            *_, last, done = events_of(lines)
            assert done == "[DONE]"
            assert json.loads(last)["choices"][0]["finish_reason"] == "length"
        assert process.wait(PATIENCE) == 143


ENDLESS = {**LONG, "max_tokens": 4_000_000}


def test_a_deadline_or_a_second_ctrl_c_ends_what_runs_without_a_word(trained: Path) -> None:
    for seconds, signals in (("0.1", [signal.SIGINT]), ("600", [signal.SIGINT] * 2)):
        with started(trained, "--max-tokens", "4000000", "--drain-seconds", seconds) as (process, client):
            with client.stream("POST", "/v1/completions", json=ENDLESS) as stream:
                lines = stream.iter_lines()  # kept, since a generator that is dropped closes the connection
                next(lines)
                for number in signals:
                    process.send_signal(number)
                    time.sleep(0.2)
                assert process.wait(PATIENCE) == 130
            assert process.stderr is not None
            said = process.stderr.read()
            assert "Traceback" not in said
            assert "ERROR" not in said


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
