"""Several checkpoints: listed, loaded when they are first asked for, unloaded when memory is needed."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpt.checkpoint import Loaded, bare_checkpoint, write_checkpoint
from gpt.config import ModelConfig
from gpt.data import CharTokenizer
from gpt.extras.serving.http.models import Models
from gpt.extras.serving.http.protocol import APIError
from gpt.model import GPT
from gpt.system.errors import CheckpointError
from http_server import ManualEngine, Served, add_run


def make_models(runs: Path, **options: Any) -> Models:
    def load(folder: Path) -> Loaded:
        return Loaded(*[None] * 3, folder, {})  # type: ignore[arg-type]

    return Models(load, lambda loaded: ManualEngine(), runs, **options)


async def use(models: Models, name: str) -> Any:
    async with models.use(name) as served:
        return served


def test_models_are_listed_and_described(server: Served) -> None:
    client = server.client()
    assert [model.id for model in client.models.list()] == ["first", "second"]
    model = client.models.retrieve("second")
    assert (model.id, model.object, model.owned_by) == ("second", "model", "gpt")
    assert model.created > 1_600_000_000


def test_window_and_vocabulary_are_told_of_a_model_that_is_not_loaded(tmp_path: Path) -> None:
    add_run(tmp_path, "run")
    models, folder = make_models(tmp_path), tmp_path / "run" / "checkpoints" / "step-000001"
    assert models.sizes("run") == {}
    tokenizer = CharTokenizer("abc")
    model = GPT(ModelConfig(n_layer=1, n_head=1, n_embd=8, block_size=32, vocab_size=3))
    write_checkpoint(folder, bare_checkpoint(model, tokenizer))
    assert models.sizes("run") == {"max_model_len": 32, "vocab_size": 3}
    (folder / "tokenizer.json").write_text(json.dumps(CharTokenizer("abcd").to_dict()))  # not what was saved
    os.utime(folder)
    assert models.sizes("run") == {}


def test_path_is_no_name(runs: Path) -> None:
    for name in ("..", "../second", "first/../second", "/etc", "first/checkpoints/step-000001", " "):
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


def test_changed_checkpoint_is_loaded_anew_and_its_users_keep_the_old_one(tmp_path: Path) -> None:
    add_run(tmp_path, "run")
    closed: list[str] = []

    async def ask() -> None:
        models = make_models(tmp_path)
        async with models.use("run") as old:
            assert await use(models, "run") is old
            old.engine.close = lambda: closed.append("old")
            (tmp_path / "run/checkpoints/step-000001").rename(tmp_path / "run/checkpoints/step-000002")
            (tmp_path / "run/last.json").write_text('{"checkpoint": "checkpoints/step-000002", "step": 2}')
            new = await use(models, "run")
            assert new.loaded.folder.name == "step-000002"
            assert not closed
        assert closed == ["old"]
        (tmp_path / "run/last.json").unlink()
        assert await use(models, "run") is new

    asyncio.run(ask())


def test_names_are_text_and_those_of_given_checkpoints(tmp_path: Path, runs: Path) -> None:
    for name in ("run", os.fsdecode(b"\xff")):
        add_run(tmp_path, name)
    assert list(make_models(tmp_path, checkpoints=()).names()) == ["run"]
    paths = [runs / "second", runs / "first" / "last", runs / "first" / "checkpoints" / "step-000001"]
    models = make_models(runs, checkpoints=paths)
    assert list(models.names()) == ["second", "first/last", "first/step-000001"]
    assert models.first == "second"
    with pytest.raises(CheckpointError, match="same name"):
        make_models(runs, checkpoints=[runs / "first", runs / "first"])
