"""Keep the run of another configuration or text aside, where a new one takes its name: nothing of it is deleted."""

import itertools
import os
import shlex
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt.checkpoint import RunFolder, read_state
from gpt.config import Config, TrainConfig
from gpt.config.loading import TEACHER_SUFFIX, dump_config
from gpt.data.dataset import Dataset
from gpt.errors import CheckpointError, ConfigError
from gpt.files import sync_folder, write_atomic
from gpt.plugins import plugin_options
from gpt.progress import Report
from gpt.training.resume import AUTO, differences_of_existing
from gpt.training.training_state import TrainingState

OTHER_TEXT = "data: another text"


@dataclass(frozen=True)
class Replaced:
    """A run that gives way to one of another configuration or text.

    Attributes:
        teacher: the folder of its teacher, which goes with it, if it has one.
        changes: `key: old -> new` for what differs.
    """

    folder: Path
    teacher: Path | None
    changes: list[str]

    def holds(self, checkpoint: Path) -> bool:
        """Return whether a checkpoint is in a folder that gives way."""
        return any(each and each.resolve() in checkpoint.resolve().parents for each in (self.folder, self.teacher))


def find_replaced(run: RunFolder, resume: str | None, config: Config, data: Dataset | None) -> Replaced | None:
    """Return the run in a folder if it will give way to the one that begins there.

    None where there is none, or where it stays: a run of the same configuration and data, one that `auto` could
    continue since it is not finished or only to be longer, a model that was written by another command, or a link.

    Args:
        data: what the new one will be trained on; None: not known yet.
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
    teacher = run.path.with_name(run.path.name + TEACHER_SUFFIX)
    has_teacher = existing.train.teacher_share is not None and teacher.is_dir()
    return Replaced(run.path, teacher if has_teacher else None, changes) if changes else None


def keep_aside(old: Replaced, locked: Path, report: Report) -> None:
    """Rename a run `NAME`, which is locked, to a free `NAME.1`, and its teacher to `NAME.1-teacher`.

    Args:
        locked: the folder of the run that is about to begin, perhaps the teacher's.

    Raises:
        CheckpointError: another process trains one of them, or they cannot be renamed; they are as they were.
    """
    aside = _free_folder(old.folder)
    moves = [(old.folder, aside)]
    if old.teacher is not None:  # first: a crash leaves no teacher in the way
        moves.insert(0, (old.teacher, aside.with_name(aside.name + TEACHER_SUFFIX)))
    again = "gpt train " + shlex.join(["--config", str(aside / "config.yaml"), *plugin_options(), "--resume", "auto"])
    with ExitStack() as locks:
        for folder in {aside, old.teacher or aside} - {locked}:
            run = RunFolder(folder)
            run.lock()
            locks.callback(run.unlock)
        _move(moves)
    # a teacher is of use only beside its student, and a text that was edited is gone
    has_end = old.folder.name.endswith(TEACHER_SUFFIX) or OTHER_TEXT in old.changes
    report(
        f"{old.folder} had another configuration ({'; '.join(old.changes)}); that run is kept as {aside}, and a new "
        f"one begins{'' if has_end else f'; continue that one with: {again}'}"
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


def _free_folder(folder: Path) -> Path:
    """Return the folder that a run is kept in, beside which there is none of a teacher either."""
    names = (f"{folder.name}.{number}" for number in itertools.count(1))
    return folder.with_name(
        next(
            name
            for name in names
            if not any(os.path.lexists(folder.with_name(name + suffix)) for suffix in ("", TEACHER_SUFFIX))
        )
    )


def _move(moves: list[tuple[Path, Path]]) -> None:
    """Rename runs, in their configurations too, so that they continue under their new names; or none of them."""
    configs = [RunFolder(folder).config() for folder, _ in moves]
    try:
        with ExitStack() as undo:
            for folder, aside in moves:
                folder.rename(aside)
                undo.callback(aside.rename, folder)
            sync_folder(moves[0][1].parent)
            for config, (_, aside) in zip(configs, moves, strict=True):
                if config is not None:
                    file = aside / "config.yaml"
                    undo.callback(write_atomic, file, file.read_bytes())
                    named = config.run.model_copy(update={"name": aside.name})
                    write_atomic(file, dump_config(config.model_copy(update={"run": named})).encode())
            undo.pop_all()
    except OSError as error:
        folder, aside = moves[-1]
        raise CheckpointError(
            f"cannot keep {folder}, a run with another configuration, as {aside}: {error.strerror}; "
            "choose another name with run.name=NAME"
        ) from None
