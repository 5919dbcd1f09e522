"""What becomes of a training that was started from the page when its server ends."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cli.serving import started
from gpt.checkpoint import RunFolder
from patience import PATIENCE
from server_process import insist
from serving.http.playground.training import TEXT, make_place


@pytest.fixture
def place(trained: Path, tmp_path: Path) -> Iterator[Path]:
    """A folder with a model, recipes and a text; no training that was started in it outlives the test."""
    shutil.copytree(trained / "runs", tmp_path / "runs")
    yield make_place(tmp_path)
    for file in tmp_path.glob("runs/*/launched.json"):
        with suppress(ProcessLookupError):
            os.kill(json.loads(file.read_text())["pid"], signal.SIGKILL)


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def status(client: httpx2.Client) -> dict[str, Any]:
    return client.get("/api/training").json()


def change(client: httpx2.Client, action: str, **body: str) -> None:
    headers = {"X-Training-Token": status(client)["token"]}
    answer = client.post(f"/api/training/{action}", json=body, headers=headers)
    assert answer.status_code == 200, answer.text


def start_endless(client: httpx2.Client) -> None:
    """Start a training that goes on until it is stopped, and return when it has made a step."""
    change(client, "start", recipe="endless", text=TEXT, name="mine")
    wait_for(lambda: status(client)["training"]["run"]["step"] > 0)


def saved_step(run: RunFolder) -> int:
    found = run.newest_valid()
    assert found is not None
    return int(found[1].state["step"])


def test_a_server_that_is_stopped_lets_its_training_save_and_another_goes_on(place: Path) -> None:
    run = RunFolder(place / "runs" / "mine")
    with started(place) as (process, client):
        start_endless(client)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 143
        assert not run.is_being_trained()
        assert process.stderr is not None
        assert "stopping the training of mine" in process.stderr.read()
    step = saved_step(run)
    with started(place) as (process, client):
        assert status(client)["training"] is None
        change(client, "resume", name="mine")
        wait_for(lambda: status(client)["training"]["run"]["step"] > step + 2)
        assert client.get("/api/training", headers={"X-Forwarded-For": "127.0.0.1"}).status_code == 403
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    assert saved_step(run) > step


def test_a_training_outlives_a_server_that_was_killed_and_the_next_one_stops_it(place: Path) -> None:
    run = RunFolder(place / "runs" / "mine")
    with started(place) as (process, client):
        start_endless(client)
        process.kill()
        process.wait()
    assert run.is_being_trained()
    with started(place) as (process, client):
        training = status(client)["training"]
        assert (training["run"]["name"], training["state"]) == ("mine", "training")
        assert training["can_stop"] is Path("/proc/self/cmdline").exists()
        seen = training["run"]["step"]
        wait_for(lambda: status(client)["training"]["run"]["step"] > seen)
        pid = json.loads((run.path / "launched.json").read_text())["pid"]
        if training["can_stop"]:
            change(client, "stop", name="mine")
        else:
            os.kill(pid, signal.SIGTERM)
        wait_for(lambda: not run.is_being_trained())
    assert saved_step(run) > seen


def test_a_second_signal_does_not_wait_for_the_training_which_still_saves(place: Path) -> None:
    run = RunFolder(place / "runs" / "mine")
    with started(place) as (process, client):
        start_endless(client)
        pid = json.loads((run.path / "launched.json").read_text())["pid"]
        os.kill(pid, signal.SIGSTOP)  # it saves when it goes on
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: client.get("/health").status_code == 503)
        assert insist(process, signal.SIGTERM) == 143
        assert run.is_being_trained()
        os.kill(pid, signal.SIGCONT)
        wait_for(lambda: not run.is_being_trained())
    assert saved_step(run) > 0
