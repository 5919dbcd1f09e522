"""Several checkpoints: listed, loaded when they are first asked for, unloaded when memory is
needed.
"""

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpt.checkpoint import Loaded, bare_checkpoint, find_checkpoint, write_checkpoint
from gpt.config import ModelConfig
from gpt.data import CharTokenizer
from gpt.extras.serving.http.models import Models
from gpt.extras.serving.http.protocol import APIError
from gpt.model import GPT
from gpt.system.errors import CheckpointError
from http_server import ManualEngine, Serve, Served, add_run, assert_is_error, real_engine
from patience import PATIENCE


def load_nothing(folder: Path) -> Loaded:
    """Return a loaded folder that has no model."""
    return Loaded(*[None] * 3, folder, {})  # type: ignore[arg-type]


def make_models(
    runs: Path, load: Callable[[Path], Loaded] = load_nothing, **options: Any
) -> Models:
    return Models(load, lambda loaded: ManualEngine(), runs, **options)


async def use(models: Models, name: str) -> Any:
    async with models.use(name) as served:
        return served


def names(models: Models) -> list[str]:
    return list(asyncio.run(models.descriptions()))


def test_models_are_listed_and_described(server: Served) -> None:
    client = server.client()
    assert [model.id for model in client.models.list()] == ["first", "second"]
    model = client.models.retrieve("second")
    assert (model.id, model.object, model.owned_by) == ("second", "model", "gpt")
    assert model.created > 1_600_000_000


def test_models_tell_window_and_vocabulary_before_loading(tmp_path: Path) -> None:
    add_run(tmp_path, "run")
    models = make_models(tmp_path)
    folder = tmp_path / "run" / "checkpoints" / "step-000001"
    assert models.sizes("run") == {}
    tokenizer = CharTokenizer("abc")
    model = GPT(ModelConfig(n_layer=1, n_head=1, n_embd=8, block_size=32, vocab_size=3))
    write_checkpoint(folder, bare_checkpoint(model, tokenizer))
    assert models.sizes("run") == {"max_model_len": 32, "vocab_size": 3}
    # The manifest has another hash of the file now.
    (folder / "tokenizer.json").write_text(json.dumps(CharTokenizer("abcd").to_dict()))
    os.utime(folder)
    assert models.sizes("run") == {}


@dataclass
class Disk:
    """A runs folder of which a run hangs, and one raises what nobody has thought of."""

    runs: Path
    asked: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def find(self, path: Path | None, runs: Path) -> Path:
        path = path or runs / "run"
        self.asked.append(path.name)
        if path.name == "hangs":
            assert self.stop.wait(PATIENCE)
        if path.name == "wrong":
            raise RecursionError
        return find_checkpoint(path, runs)


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk(tmp_path)
    for name in ("hangs", "run", "wrong"):
        add_run(tmp_path, name)
    monkeypatch.setattr("gpt.extras.serving.http.models.find_checkpoint", disk.find)
    monkeypatch.setattr("gpt.extras.serving.http.folders.LOOK_SECONDS", 0.2)
    yield disk
    disk.stop.set()


def test_folder_that_hangs_or_fails_takes_no_other_with_it(serve: Serve, hanging: Disk) -> None:
    ok = {"prompt": "It", "max_tokens": 1}
    with serve(real_engine, folder=hanging.runs) as served:
        for _ in range(2):
            assert [model["id"] for model in served.get("/v1/models").json()["data"]] == ["run"]
        for _ in range(20):
            assert_is_error(served.get("/v1/models/hangs"), 503, "model", "'hangs' does not answer")
            assert_is_error(
                served.post(model="hangs", **ok), 503, "model", "'hangs' does not answer"
            )
        assert hanging.asked.count("hangs") == 1
        assert served.get("/v1/models/run").status_code == served.get("/version").status_code == 200
        assert served.post(model="run", **ok).status_code == 200


def test_model_whose_disk_begins_to_hang_stays_loaded(
    serve: Serve, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()
    with serve(real_engine) as served:
        monkeypatch.setattr("gpt.extras.serving.http.folders.LOOK_SECONDS", 0.2)
        monkeypatch.setattr(
            "gpt.extras.serving.http.models.find_checkpoint",
            lambda path, runs: stop.wait(PATIENCE),
        )
        assert served.post(prompt="It", max_tokens=1).status_code == 200
        stop.set()


def test_model_that_is_loaded_for_ever_is_waited_for_by_no_other(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpt.extras.serving.http.models.LOAD_SECONDS", 0.2)
    stop = threading.Event()

    def load(folder: Path) -> Loaded:
        if "first" in folder.parts:
            stop.wait(PATIENCE)
        return load_nothing(folder)

    async def ask() -> None:
        models = make_models(runs, load)
        for _ in range(2):
            with pytest.raises(APIError, match="does not answer"):
                await use(models, "first")
        assert (await use(models, "second")).loaded.folder.parts[-3] == "second"
        stop.set()
        while len(models.loaded) < 2:
            await asyncio.sleep(0.01)
        assert list(models.loaded) == ["second", "first"]
        await use(models, "first")

    asyncio.run(ask())


def test_path_is_no_name(runs: Path) -> None:
    for name in (
        "..",
        "../second",
        "first/../second",
        "/etc",
        "first/checkpoints/step-000001",
        " ",
    ):
        with pytest.raises(APIError, match="there is no model"):
            asyncio.run(use(make_models(runs), name))


def test_unused_and_failed_models_give_way(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpt.extras.serving.http.models.MAX_LOADED", 1)

    async def ask() -> None:
        models = make_models(runs)
        async with models.use("first"):
            await use(models, "second")
            assert list(models.loaded) == ["first", "second"]
        failed = await use(models, "second")
        failed.engine.failure = RuntimeError("broken")
        assert await use(models, "second") is not failed
        assert list(models.loaded) == ["second"]

    asyncio.run(ask())


def test_changed_checkpoint_is_loaded_anew_beside_the_old_one(tmp_path: Path) -> None:
    add_run(tmp_path, "run")
    closed: list[str] = []

    async def ask() -> None:
        models = make_models(tmp_path)
        async with models.use("run") as old:
            assert await use(models, "run") is old
            old.engine.close = lambda: closed.append("old")
            (tmp_path / "run/checkpoints/step-000001").rename(
                tmp_path / "run/checkpoints/step-000002"
            )
            (tmp_path / "run/last.json").write_text(
                '{"checkpoint": "checkpoints/step-000002", "step": 2}'
            )
            new = await use(models, "run")
            assert new.loaded.folder.name == "step-000002"
            assert not closed
        assert closed == ["old"]
        (tmp_path / "run/last.json").unlink()
        assert await use(models, "run") is new

    asyncio.run(ask())


def test_names_are_text_and_those_of_given_checkpoints(tmp_path: Path, runs: Path) -> None:
    # The second is no UTF-8, and could not be sent as JSON.
    for name in ("run", os.fsdecode(b"\xff")):
        add_run(tmp_path, name)
    assert names(make_models(tmp_path, checkpoints=())) == ["run"]
    paths = [
        runs / "second",
        runs / "first" / "last",
        runs / "first" / "checkpoints" / "step-000001",
    ]
    models = make_models(runs, checkpoints=paths)
    assert names(models) == ["second", "first/last", "first/step-000001"]
    assert models.first == "second"
    with pytest.raises(CheckpointError, match="same name"):
        make_models(runs, checkpoints=[runs / "first", runs / "first"])
