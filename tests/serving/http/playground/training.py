"""A server whose page may start trainings, of recipes that take a second or until they are stopped."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from gpt.serving.http.playground.corpora import Corpora
from gpt.serving.http.playground.recipes import Recipes
from gpt.serving.http.playground.runs import Runs
from gpt.serving.http.playground.trainings import Trainings
from http_server import Serve, Served
from patience import PATIENCE
from tiny import CORPUS

RECIPE = """# yaml-language-server: $schema=schema.json
# {about}
run: {{device: cpu, dtype: float32, compile: false, kernels: torch, threads: 1}}
model: {{n_layer: 1, n_head: 2, n_embd: 16, block_size: 16}}
optim: {{warmup_steps: 2}}
train: {{batch_size: 4, max_steps: {steps}, eval_interval: {interval}, log_interval: 1, sample_tokens: 10}}
"""
TEXT = CORPUS * 5
"""Enough for a window in each split."""


def make_place(folder: Path) -> Path:
    """Fill a folder with the recipes `tiny` (6 steps) and `endless`, and with a data folder of one book."""
    (folder / "configs").mkdir()
    for name, steps, interval in (("tiny", 6, 3), ("endless", 10**9, 10**8)):
        text = RECIPE.format(about=f"The {name} one.", steps=steps, interval=interval)
        (folder / "configs" / f"{name}.yaml").write_text(text, encoding="utf-8")
    (folder / "data" / "books").mkdir(parents=True)
    (folder / "data" / "books" / "keys.txt").write_text(TEXT, encoding="utf-8")
    return folder


@dataclass
class Site:
    """A server, and requests to it as its page makes them; `place` is a folder with configs, data and runs."""

    served: Served
    place: Path

    def get(self, path: str = "", **options: Any) -> httpx2.Response:
        with self.served.http() as client:
            return client.get(f"/api/training{path}", **options)

    def post(self, path: str, body: Any = None, **headers: Any) -> httpx2.Response:
        """Post as the page does; `headers` replace what it sends."""
        own = {"X-Training-Token": self.get().json()["token"], "Origin": self.served.url}
        return self.served.send(json.dumps(body), f"/api/training{path}", **{**own, **headers})

    def wait_for(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the training once it is as it should be."""
        until = time.monotonic() + PATIENCE
        while True:
            training = self.get().json()["training"]
            if training is not None and condition(training):
                return training
            assert time.monotonic() < until, training
            assert training is None or training["state"] != "ended", training
            time.sleep(0.05)

    def wait_until_ended(self) -> dict[str, Any]:
        return self.wait_for(lambda training: training["state"] == "ended")


@contextmanager
def training_site(
    serve: Serve, place: Path, measure: Callable[[object], float] = lambda run: 1e9, **options: Any
) -> Iterator[Site]:
    """Run a server in a thread, see `serve`; a training that still runs at the end is stopped.

    Args:
        place: see `make_place`.
        measure: see `Recipes`.
    """
    runs = Runs(place / "runs")
    recipes = Recipes(place / "configs", runs, measure)
    trainings = Trainings(runs, recipes, Corpora(place / "data"), lambda line: None)
    with serve(trainings=trainings, **options) as served:
        try:
            yield Site(served, place)
        finally:
            trainings.close()
            until = time.monotonic() + PATIENCE
            while trainings.running:
                assert time.monotonic() < until
                time.sleep(0.02)
