"""A training that was started from the server's page, on a disk that becomes full: the page says so, and goes on."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drills.disk import DISK, NO_DISK, fill, make_room, mount_disk
from gpt.checkpoint import RunFolder
from patience import PATIENCE
from server_process import ServerProcess, serve_process
from tiny import CORPUS, TINY

EVERY = 200
"""Steps between two evaluations: long enough for the last lines of the console to be read, and for it to have room."""
ENDLESS = {
    "max_steps: 6": "max_steps: 1000000",
    "eval_interval: 3": f"eval_interval: {EVERY}",
    "log_interval: 1": f"log_interval: {EVERY}",
    "name: tiny, ": "",
}
NAME = "paged"


class TrainingPage:
    """What the page asks of a server, and shows."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server

    def status(self) -> dict[str, Any]:
        return json.loads(self._server.get("/api/training"))

    def post(self, path: str, **body: str) -> None:
        headers = {"X-Training-Token": self.status()["token"], "Content-Type": "application/json"}
        status, answer = self._server.ask("POST", f"/api/training/{path}", json.dumps(body).encode(), headers)
        if status != 200:
            print(f"MISSING: {path} is answered with {status}: {answer}")

    def wait(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the training once a condition holds, or once it has ended."""
        end = time.monotonic() + PATIENCE / 2
        while True:
            training = self.status()["training"]
            if training["state"] == "ended" or condition(training):
                return training
            assert time.monotonic() < end, training
            time.sleep(0.1)


def train_from_page() -> int:
    """Train from the page until its disk is full, say so, make room and go on, in a child; return the first code."""
    recipe = TINY
    for old, new in ENDLESS.items():
        recipe = recipe.replace(old, new)
    Path("configs").mkdir(exist_ok=True)
    Path("configs/endless.yaml").write_text(recipe, encoding="utf-8")
    try:
        mount_disk(4000)
    except OSError:
        return NO_DISK
    with serve_process(Path.cwd(), "--checkpoint", "runs/tiny", "--runs", "disk/runs") as server:
        page = TrainingPage(server)
        page.post("start", recipe="endless", text=CORPUS * 30, name=NAME)
        _require(
            page.wait(lambda training: training["run"]["best_step"]), lambda training: training["exit_code"] is None
        )
        fill()
        page.wait(lambda training: "No space left" in " ".join(training["lines"]))
        page.post("stop", name=NAME)
        full = page.wait(lambda training: False)
        _require(full, lambda training: "No space left" in training["lines"][-1])
        make_room()
        saved = _saved_step()
        page.post("resume", name=NAME)
        page.wait(lambda training: training["run"]["step"] > saved + EVERY)
        page.post("stop", name=NAME)
        _require(page.wait(lambda training: False), lambda training: training["exit_code"] == 143)
    if _saved_step() <= saved:
        print(f"MISSING: step {_saved_step()} is saved after step {saved}")
    return int(full["exit_code"])


def _require(training: dict[str, Any], condition: Callable[[dict[str, Any]], bool]) -> None:
    if not condition(training):
        print(f"MISSING: {training}")


def _saved_step() -> int:
    found = RunFolder(DISK / "runs" / NAME).newest_valid()
    assert found is not None
    return int(found[1].state["step"])
