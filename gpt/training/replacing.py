"""Keep the run of another configuration aside, where a new one takes its name: nothing of it is deleted."""

import itertools
import os
from contextlib import ExitStack

from gpt.checkpoint import RunFolder, read_state
from gpt.config import Config, TrainConfig
from gpt.config.loading import TEACHER_SUFFIX, dump_config
from gpt.errors import CheckpointError, ConfigError
from gpt.files import sync_folder, write_atomic
from gpt.progress import Report
from gpt.training.resume import AUTO, differences_of_existing
from gpt.training.training_state import TrainingState


def find_replaced(run: RunFolder, resume: str | None, config: Config) -> list[str]:
    """Return in what the run in a folder differs from the one that will begin there in its place.

    The list is empty where there is none, or where it does not give way: a run of the same configuration, one that
    `auto` could continue since it is not finished, a model that was written by another command, or a link.
    """
    if run.is_checkpoint or run.path.is_symlink() or resume not in (None, AUTO):
        return []
    try:
        existing = run.config()
    except ConfigError:
        if resume is None:
            raise
        return []  # a resume needs only that of the checkpoint
    if existing is None or (resume == AUTO and not _is_finished(run, existing.train)):
        return []
    return differences_of_existing(existing, config)


def keep_aside(run: RunFolder, changes: list[str], resume: str | None, report: Report) -> None:
    """Rename a run `NAME`, which is locked, to a free `NAME.1`, and its teacher to `NAME.1-teacher`.

    Raises:
        CheckpointError: another process trains one of them, or they cannot be renamed.
    """
    teacher = RunFolder(run.path.with_name(run.path.name + TEACHER_SUFFIX))
    aside, its_teacher = _free_names(run)
    existing = run.config()
    assert existing is not None
    with ExitStack() as locks:
        has_teacher = existing.train.teacher_share is not None and teacher.path.is_dir()
        for each in (aside, *([teacher] if has_teacher else [])):
            each.lock()
            locks.callback(each.unlock)
        _move(run, aside)
        if has_teacher:
            _move(teacher, its_teacher)
    again = f"; continue that one with run.name={aside.path.name} --resume auto --allow-config-change"
    report(
        f"{run.path} had another configuration ({'; '.join(changes)}); that run is kept as {aside.path}, and a new one "
        f"begins{again if resume == AUTO else ''}"
    )


def _is_finished(run: RunFolder, train: TrainConfig) -> bool:
    folder = run.pointed("last")
    try:
        return folder is not None and TrainingState.from_dict(read_state(folder)).is_over(train)
    except CheckpointError:  # a resume reports that it is damaged
        return False


def _free_names(run: RunFolder) -> tuple[RunFolder, RunFolder]:
    """Return the folders that a run and its teacher are kept in."""
    names = (f"{run.path.name}.{number}" for number in itertools.count(1))
    pairs = ((run.path.with_name(name), run.path.with_name(name + TEACHER_SUFFIX)) for name in names)
    one, other = next(pair for pair in pairs if not any(os.path.lexists(path) for path in pair))
    return RunFolder(one), RunFolder(other)


def _move(run: RunFolder, aside: RunFolder) -> None:
    """Rename a run, in its configuration too, so that it continues under its new name."""
    try:
        run.path.rename(aside.path)
        sync_folder(aside.path.parent)
        config = aside.config()
        if config is not None:
            named = config.run.model_copy(update={"name": aside.path.name})
            write_atomic(aside.path / "config.yaml", dump_config(config.model_copy(update={"run": named})).encode())
    except OSError as error:
        raise CheckpointError(
            f"cannot keep {run.path}, a run with another configuration, as {aside.path}: {error.strerror}; "
            "choose another name with run.name=NAME"
        ) from None
