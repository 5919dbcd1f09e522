"""scripts/serve.py as a person starts and stops it."""

import json
import signal
import socket
import threading
from pathlib import Path

import pytest

from cli.serving import started
from gpt.cli import sample, serve
from gpt.errors import CheckpointError
from patience import PATIENCE
from server_process import insist

LONG = {"prompt": "It", "max_tokens": 4000, "stream": True}


def test_a_run_is_served_and_says_what_sample_says(trained: Path, capsys, monkeypatch) -> None:
    with started(trained) as (process, client):
        body = {"prompt": "It was", "max_tokens": 20, "seed": 3}
        text = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["tiny"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 143
    monkeypatch.chdir(trained)
    assert sample.main(["--prompt", "It was", "--max-new-tokens", "20", "--seed", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == text


def test_sigterm_lets_a_stream_finish_and_refuses_new_requests(trained: Path) -> None:
    with started(trained) as (process, client), client.stream("POST", "/v1/completions", json=LONG) as stream:
        lines = stream.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        while client.get("/health").status_code == 200:  # until the signal has arrived
            pass
        answer = client.post("/v1/completions", json={"prompt": "It"})
        assert answer.status_code == 503
        assert "Retry-After" in answer.headers
        events = [line.removeprefix("data: ") for line in lines if line]
        assert events[-1] == "[DONE]"
        assert json.loads(events[-2])["choices"][0]["finish_reason"] == "length"
        assert process.wait(PATIENCE) == 143


@pytest.mark.parametrize("twice", [False, True])
def test_a_deadline_or_a_second_signal_ends_what_runs(trained: Path, twice: bool) -> None:
    seconds = "600" if twice else "0.1"
    options = ("--max-tokens", "4000000", "--drain-seconds", seconds)
    with started(trained, *options) as (process, client):
        body = {**LONG, "max_tokens": 4_000_000}
        with client.stream("POST", "/v1/completions", json=body) as stream:
            lines = stream.iter_lines()
            next(lines)
            process.send_signal(signal.SIGINT)
            if twice:
                while client.get("/health").status_code == 200:
                    pass
                assert insist(process, signal.SIGINT) == 130
                return
            events = [line.removeprefix("data: ") for line in lines if line]
            assert json.loads(events[-2])["error"]["type"] == "server_error"
            assert events[-1] == "[DONE]"
        assert process.wait(PATIENCE) == 130


def test_what_a_second_signal_cuts_off_is_no_error(trained: Path) -> None:
    body = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"
    with started(trained, "--drain-seconds", "600") as (process, client):
        with socket.create_connection((client.base_url.host, client.base_url.port)) as unfinished:
            unfinished.sendall(body)
            assert insist(process, signal.SIGINT) == 130
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_without_a_run_one_line_says_how_to_get_one(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert serve.main([]) == 2
    error = capsys.readouterr().err
    assert "train first: python scripts/train.py" in error
    assert error.count("\n") == 1


def test_a_checkpoint_that_is_missing_is_named(trained: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(trained)
    assert serve.main(["--checkpoint", "runs/tiny", "--checkpoint", "runs/none"]) == 2
    assert "runs/none: no such run or checkpoint" in capsys.readouterr().err


def test_a_model_that_takes_long_to_load_is_announced(trained: Path, monkeypatch) -> None:
    said, lines = threading.Event(), []

    def load(*arguments: object) -> None:
        assert said.wait(PATIENCE)
        raise CheckpointError("damaged")

    monkeypatch.chdir(trained)
    monkeypatch.setattr("gpt.progress.SILENCE", 0.0)
    monkeypatch.setattr("gpt.checkpoint.load_trained", load)
    monkeypatch.setattr(serve, "report", lambda line: (lines.append(line), said.set()))
    assert serve.main(["--port", "0"]) == 2
    assert lines == ["loading the model"]


def test_a_port_that_is_taken_is_one_line(trained: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(trained)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert serve.main(["--port", str(port)]) == 2
    assert f"cannot listen at 127.0.0.1, port {port}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [["--port", "70000"], ["--max-sequences", "0"], ["--drain-seconds", "-1"], ["--host", "no.such.host."]]
)
def test_a_wrong_option_is_one_line(trained: Path, monkeypatch, capsys, options: list[str]) -> None:
    monkeypatch.chdir(trained)
    assert serve.main(options) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", ["", "http://gpu.lan", "gpu.lan:8000", "*"])
def test_a_name_that_no_request_can_have_is_refused(capsys, name: str) -> None:
    with pytest.raises(SystemExit):
        serve.main([f"--allow-host={name}"])
    assert f"expected a name such as gpu-box.lan, without scheme and port, got {name!r}" in capsys.readouterr().err


def test_what_is_not_installed_is_one_line(monkeypatch, capsys) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda name: None)
    assert serve.main([]) == 2
    assert "pip install" in capsys.readouterr().err
