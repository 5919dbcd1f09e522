"""What a page says about a model: what it is, what it learned from, and how well it predicts."""

import json
import math
import shlex
from pathlib import Path
from typing import Any

from gpt.checkpoint import Loaded, RunFolder, step_files
from gpt.config import Config
from gpt.config.sources import load_config, recipe_names
from gpt.extras.inspection.views.snapshots import read_snapshot
from gpt.extras.inspection.views.tokens import kind_of
from gpt.system.errors import CheckpointError

CORPORA = {"shakespeare": "Tiny Shakespeare", "pydocs": "Python's own documentation"}
"""Names of the corpora of the package, by `data.source`."""
LOCAL_KEYS = {"run.name", "run.dir", "data.dir", "model.vocab_size"}
"""Keys that say where a run lies, or that follow from its text."""
MAX_CHANGES = 12
"""Most keys of a command: a configuration that differs more from every recipe has none."""


def about_of(loaded: Loaded) -> dict[str, Any]:
    """Return the facts about a model, as JSON values.

    Returns:
        `parameters`; `corpus`, the name of the text, and `characters`, its length; `seconds` of
        training on `hardware`; `choices`, how many tokens a blind guess would be right about as
        often as the model is on text that it has not read, of `vocab_size`; and `command`. What
        is not known of an imported model, or of a run whose snapshots are gone, is None.
    """
    state = loaded.state
    is_trained = "data" in state  # not imported
    facts: dict[str, Any] = {
        "parameters": sum(parameter.numel() for parameter in loaded.model.parameters()),
        "token": kind_of(loaded.tokenizer),
        "vocab_size": loaded.tokenizer.vocab_size,
        "corpus": corpus_name(loaded.config) if is_trained else None,
        "seconds": state.get("seconds"),
        "choices": None,
        "command": command_of(loaded.config) if is_trained else None,
        **_from_snapshot(RunFolder(loaded.folder.parent.parent)),
    }
    # A checkpoint may be of a step that was not evaluated.
    if state.get("evaluated_step") == state.get("step") and state.get("val_loss") is not None:
        facts["choices"] = math.exp(state["val_loss"])
    return facts


def _from_snapshot(run: RunFolder) -> dict[str, Any]:
    """Return what a run's first snapshot says of its text and machine."""
    for file in step_files(run.snapshots).values():
        try:
            snapshot = read_snapshot(file)
        except CheckpointError:
            break
        return {"characters": snapshot.characters, "hardware": snapshot.hardware}
    return {"characters": None, "hardware": None}


def corpus_name(config: Config) -> str:
    """Return what a corpus is called, without the folders in which a user has it."""
    data = config.data
    if data.source in CORPORA:
        return CORPORA[data.source]
    return ", ".join(Path(path).name for path in _paths(data.path))


def _paths(given: Any) -> list[str]:
    if given is None:
        return []
    return [given] if isinstance(given, str) else list(given)


def command_of(config: Config) -> str | None:
    """Return a command that trains by a configuration: a recipe, and what differs from it.

    It is None if no recipe is near. Of the user's files it has the names without their folders.
    """
    wanted = _flat(config)
    nearest: list[str] | None = None
    for recipe in recipe_names():
        base = _flat(load_config(recipe).config)
        changes = [key for key in wanted if wanted[key] != base[key] and key not in LOCAL_KEYS]
        words = ["gpt", "train", "--config", recipe]
        for key in changes:
            words.append(f"{key}={_written(key, wanted[key])}")
        if nearest is None or len(words) < len(nearest):
            nearest = words
    if nearest is None or len(nearest) > MAX_CHANGES + 4:
        return None
    return shlex.join(nearest)


def _flat(config: Config) -> dict[str, Any]:
    """Return the values of a configuration by `section.key`."""
    sections = config.model_dump(mode="json")
    flat: dict[str, Any] = {}
    for section, values in sections.items():
        for key, value in values.items():
            flat[f"{section}.{key}"] = value
    return flat


def _written(key: str, value: Any) -> str:
    """Return a value as an override has it."""
    if key.endswith("path") and value is not None:
        return ",".join(Path(path).name for path in _paths(value))
    return value if isinstance(value, str) else json.dumps(value)
