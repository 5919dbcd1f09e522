"""A server whose page may start trainings, of recipes that take a second or until they are stopped."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from gpt.checkpoint import Loaded
from gpt.serving.http.playground.corpora import Corpora
from gpt.serving.http.playground.recipes import Recipes
from gpt.serving.http.playground.runs import Runs
from gpt.serving.http.playground.trainings import Trainings
from http_server import Served, real_engine, serve_models
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


class Site:
    """A server, and requests to it as its page makes them.

    Attributes:
        served: see `Served`.
        trainings: of the server.
        place: folder with configs, data and runs.
    """

    def __init__(self, served: Served, trainings: Trainings, place: Path) -> None:
        self.served, self.trainings, self.place = served, trainings, place

    def get(self, path: str = "", **options: Any) -> httpx2.Response:
        with self.served.http() as client:
            return client.get(f"/api/training{path}", **options)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx2.Response:
        """Post as the page does; `options` replace what it sends."""
        headers = {"X-Training-Token": self.get().json()["token"], "Origin": self.served.url}
        headers |= {"Content-Type": "application/json", **options.pop("headers", {})}
        with self.served.http() as client:
            return client.post(f"/api/training{path}", content=json.dumps(body), headers=headers, **options)

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
    place: Path, loaded: Callable[[Path], Loaded], models: Path, measure: Callable[[object], float] = lambda run: 1e9
) -> Iterator[Site]:
    """Run a server in a thread; a training that still runs at the end is stopped.

    Args:
        place: see `make_place`.
        loaded: the model that is served.
        models: a runs folder that has one, which the server needs.
        measure: see `Recipes`.
    """
    runs = Runs(place / "runs")
    recipes = Recipes(place / "configs", runs, measure)
    trainings = Trainings(runs, recipes, Corpora(place / "data"), lambda line: None)
    with serve_models(models, loaded, real_engine, trainings=trainings) as served:
        try:
            yield Site(served, trainings, place)
        finally:
            trainings.close()
            until = time.monotonic() + PATIENCE
            while trainings.running:
                assert time.monotonic() < until
                time.sleep(0.02)
