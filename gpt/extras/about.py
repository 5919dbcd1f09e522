"""What a page says about a model: what it is, what it learned from, and how well it predicts."""

import json
import math
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpt.checkpoint import Loaded, RunFolder, step_files
from gpt.config import Config
from gpt.config.sources import load_config, recipe_names
from gpt.data.tokenizers import Tokenizer
from gpt.extras.inspection.views.snapshots import Snapshot, read_snapshot
from gpt.extras.inspection.views.tokens import kind_of
from gpt.model import GPT
from gpt.system.errors import CheckpointError

CORPORA = {"shakespeare": "Tiny Shakespeare", "pydocs": "Python's own documentation"}
"""Names of the corpora of the package, by `data.source`."""
LOCAL_KEYS = {"run.name", "run.dir", "data.dir", "model.vocab_size"}
"""Keys that say where a run lies, or that follow from its text."""
MAX_CHANGES = 12
"""Most keys of a command: a configuration that differs more from every recipe has none."""


@dataclass(frozen=True)
class About:
    """The facts about a model; None is what is not known.

    Attributes:
        corpus: the name of the text that it learned from.
        characters: the length of that text.
        seconds: the time of the training, on `hardware`.
        choices: the perplexity of the validation split, of `vocab_size`: the model is as unsure of
            a token there as of a choice among so many.
        command: a command that trains it again.
        prompt: what it continues first.
    """

    parameters: int
    token: str
    vocab_size: int
    corpus: str | None = None
    characters: int | None = None
    seconds: float | None = None
    hardware: str | None = None
    choices: float | None = None
    command: str | None = None
    prompt: str | None = None

    @property
    def headline(self) -> str:
        """What a reader who knows nothing of models should see first."""
        if not self.corpus:
            return f"{self.parameters:,} numbers that learned to write"
        words = f"A computer learned to write from {self.corpus}"
        if self.seconds:
            words += f" in {_duration(self.seconds)}"
        return words

    @property
    def sentence(self) -> str:
        """What the model is and learned from, as `about.js` says it."""
        words = f"{self.parameters:,} numbers"
        if self.corpus:
            words += " learned from "
            if self.characters:
                words += f"{_roughly(self.characters)} characters of "
            words += self.corpus
        if self.seconds:
            words += f" in {_duration(self.seconds)}"
            if self.hardware:
                words += f" on {self.hardware}"
        return f"{words}."


def _roughly(count: int) -> str:
    """Return a number as it is, or a large one to two digits."""
    if count < 1000:
        return str(count)
    num_digits = len(str(count))
    rounded = round(count, 2 - num_digits)
    for unit, name in ((10**9, "billion"), (10**6, "million"), (10**3, "thousand")):
        if rounded >= 10 * unit:
            return f"{rounded // unit} {name}"
        if rounded >= unit:
            return f"{rounded / unit:.2g} {name}"  # 1.1, but 2 and not 2.0
    raise AssertionError(count)


def _duration(seconds: float) -> str:
    """Return a time in whole seconds, minutes or hours."""
    for unit, name, least in ((3600, "hour", 7200), (60, "minute", 120), (1, "second", 0)):
        if seconds >= least:
            # A half is rounded up, as JavaScript does it.
            count = max(1, math.floor(seconds / unit + 0.5))
            return f"{count:,} {name}" if count == 1 else f"{count:,} {name}s"
    raise AssertionError(seconds)


def about_model(model: GPT, tokenizer: Tokenizer) -> About:
    """Return what a model itself tells."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return About(parameters, kind_of(tokenizer), tokenizer.vocab_size)


def about_loaded(loaded: Loaded) -> About:
    """Return what a model, its checkpoint and its run tell."""
    about = about_model(loaded.model, loaded.tokenizer)
    state = loaded.state
    if "data" not in state:  # it was imported
        return about
    choices = None
    # A checkpoint may be of a step that was not evaluated.
    if state.get("val_loss") is not None and state.get("evaluated_step") == state.get("step"):
        choices = math.exp(state["val_loss"])
    about = replace(
        about,
        corpus=corpus_name(loaded.config),
        # A model that began with another one's weights has learned for longer than its own run.
        seconds=state.get("seconds") if loaded.config.train.init_from is None else None,
        choices=choices,
        command=command_of(loaded.config),
    )
    # A checkpoint is runs/NAME/checkpoints/step-N; for one outside of a run there are no snapshots.
    snapshot = _first_snapshot(RunFolder(loaded.folder.parent.parent))
    if snapshot is None:
        return about
    return replace(
        about,
        characters=snapshot.characters,
        hardware=snapshot.hardware,
        prompt=snapshot.prompt,
    )


def _first_snapshot(run: RunFolder) -> Snapshot | None:
    """Return a run's first snapshot; None where there is none or it is damaged."""
    files = list(step_files(run.snapshots).values())
    if not files:
        return None
    try:
        return read_snapshot(files[0])
    except CheckpointError:
        return None


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
        names = [Path(path).name for path in _paths(value)]
        return names[0] if isinstance(value, str) else f"[{', '.join(names)}]"
    return value if isinstance(value, str) else json.dumps(value)
