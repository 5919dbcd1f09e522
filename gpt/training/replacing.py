"""Rename a run of another configuration or text out of the way of one that takes its name; nothing is deleted."""

import itertools
import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt.checkpoint import RunFolder, read_state
from gpt.config import Config, TrainConfig
from gpt.config.loading import dump_config, read_yaml
from gpt.config.plugins import plugin_options
from gpt.data.dataset import Dataset
from gpt.system.errors import CheckpointError, ConfigError
from gpt.system.files import sync_folder, write_atomic
from gpt.system.invocation import command_line
from gpt.system.progress import Report
from gpt.training.resume import AUTO, differences_of_existing
from gpt.training.training_state import TrainingState

OTHER_TEXT = "data: another text"


@dataclass(frozen=True)
class DisplacedRun:
    """A run that is renamed, since one of another configuration or text takes its name."""

    folder: Path
    changes: list[str]  # `key: old -> new` for what differs

    def contains(self, checkpoint: Path) -> bool:
        """Return whether a checkpoint is in the folder that is renamed."""
        return self.folder.resolve() in checkpoint.resolve().parents


def find_displaced(run: RunFolder, resume: str | None, config: Config, data: Dataset | None) -> DisplacedRun | None:
    """Return the run in a folder if the one that begins there, on `data` if that is known yet, displaces it.

    None where there is none, or where it stays: a run of the same configuration and data, one that `auto` could
    continue since it is not finished or only to be longer, a model that was written by another command, or a link.
    """
    if run.is_checkpoint or run.path.is_symlink() or resume not in (None, AUTO):
        return None
    try:
        existing = run.config()
    except ConfigError:
        if resume is None:
            raise
        return None  # a resume needs only that of the checkpoint
    state = _last_state(run)
    if existing is None or (resume == AUTO and not _is_finished(state, existing.train)):
        return None
    changes = differences_of_existing(existing, config, is_resumed=resume == AUTO)
    if data is not None and state.get("data", data.fingerprint) != data.fingerprint:
        changes.append(OTHER_TEXT)
    return DisplacedRun(run.path, changes) if changes else None


def keep_aside(old: DisplacedRun, report: Report) -> None:
    """Rename a run `NAME`, which is locked, to a free `NAME.1`.

    Raises:
        CheckpointError: another process trains a run of that name, or it cannot be renamed; it is as it was.
    """
    numbered = (old.folder.with_name(f"{old.folder.name}.{number}") for number in itertools.count(1))
    aside = next(each for each in numbered if not os.path.lexists(each))
    again = command_line("train", "--config", str(aside / "config.yaml"), *plugin_options(), "--resume", "auto")
    place = RunFolder(aside)
    place.lock()
    try:
        _move(old.folder, aside)
    finally:
        place.unlock()
    way = "" if OTHER_TEXT in old.changes else f"; continue that one with: {again}"  # a text that was edited is gone
    report(
        f"{old.folder} had another configuration ({'; '.join(old.changes)}); that run is kept as {aside}, and a new "
        f"one begins{way}"
    )


def _last_state(run: RunFolder) -> dict[str, Any]:
    """Return the state of a run's last checkpoint; none where it is missing or damaged, which a resume reports."""
    folder = run.pointed("last")
    try:
        return {} if folder is None else read_state(folder)
    except CheckpointError:
        return {}


def _is_finished(state: dict[str, Any], train: TrainConfig) -> bool:
    try:
        return TrainingState.from_dict(state).is_over(train)
    except CheckpointError:
        return False


def _move(folder: Path, aside: Path) -> None:
    """Rename a run, in its configuration too, so that it continues under its new name; or leave it as it was."""
    config = RunFolder(folder).config()
    try:
        with ExitStack() as undo:
            folder.rename(aside)
            undo.callback(aside.rename, folder)
            sync_folder(aside.parent)
            if config is not None:
                file = aside / "config.yaml"
                undo.callback(write_atomic, file, read_yaml(file).encode())
                named = config.run.model_copy(update={"name": aside.name})
                write_atomic(file, dump_config(config.model_copy(update={"run": named})).encode())
            undo.pop_all()
    except OSError as error:
        raise CheckpointError(
            f"cannot keep {folder}, a run with another configuration, as {aside}: {error.strerror}; "
            "choose another name with run.name=NAME"
        ) from None
