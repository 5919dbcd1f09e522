"""The folder of a run: the one its configuration lies in, or NAME, or NAME-2 beside another run.

The configuration in a run's folder has the `run.name` that was wanted, which is NAME in the folder
NAME-2 too. In the folder of a run that a user has named NAME-2, it is NAME-2.
"""

import itertools
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gpt.checkpoint import RunFolder, read_state, run_around
from gpt.config import Config, TrainConfig
from gpt.config.loading import parse_document, read_yaml
from gpt.config.plugins import plugin_options
from gpt.config.sources import LoadedConfig, override
from gpt.data.dataset import Dataset
from gpt.system.distributed import World
from gpt.system.errors import CheckpointError, ConfigError, first_line
from gpt.system.invocation import command_line
from gpt.training.resume import AUTO, differences_of_existing, runs_of
from gpt.training.training_state import TrainingState

OTHER_TEXT = "data: another text"
"""The entry in a list of changes which says that a run was trained on another text."""
_NUMBER_SUFFIX = re.compile(r"-([2-9]|[1-9][0-9]{1,2})")
"""What is added to the name of a run whose name is taken, from -2 to -999.

A number of four digits is more likely a year, which a user has put into the name of another run.
"""


@dataclass(frozen=True)
class WantedRun:
    """What a training asks for; existing runs are compared with it.

    Attributes:
        loaded: the configuration as it was read, and where.
        config: the same configuration as it will be trained; `run.name` is filled in.
        data: None if the tokenizer comes from a checkpoint, since the text is not encoded then;
            texts are not compared in this case.
        resume: None, `auto`, or the folder of a checkpoint.
        allow_config_change: whether a run may be resumed with another configuration.
    """

    loaded: LoadedConfig
    config: Config
    data: Dataset | None
    resume: str | Path | None
    allow_config_change: bool

    def changes_of(self, folder: Path, may_be_longer: bool = False) -> list[str]:
        """Return `key: old -> new` for each key that differs from the run in a folder.

        The list also says if the text differs, or if the run cannot be read.

        Args:
            may_be_longer: whether a larger number of steps does not count as a difference.
        """
        run = RunFolder(folder)
        try:
            existing = run.config()
        except ConfigError as error:
            # The configuration is damaged, or names a component of a plugin that is not loaded.
            return [f"it cannot be read here: {first_line(error)}"]
        if existing is None:
            return []  # without a configuration there is nothing to compare
        # A resumed run may have more steps than before.
        changes = differences_of_existing(existing, self.config, is_resumed=may_be_longer)
        if self.data is not None:
            # A checkpoint has the fingerprint of the text. If a run has no readable checkpoint, its
            # text is assumed to be the same.
            old_fingerprint = _last_state(run).get("data", self.data.fingerprint)
            if old_fingerprint != self.data.fingerprint:
                changes.append(OTHER_TEXT)
        return changes


@dataclass(frozen=True)
class Choice:
    """The folder of a training, and a line for the user if the folder that was named is taken."""

    folder: Path
    line: str = ""


def _named_folder(loaded: LoadedConfig) -> tuple[Path, bool]:
    """Return the folder that a configuration means, and whether the configuration lies in it.

    The configuration in a run's folder means that run, even if a user has moved or renamed the
    folder. Any other configuration means the folder `run.name` below `run.dir`.
    """
    # `run_file` is None unless the configuration is a file named config.yaml, whose `run.name` and
    # `run.dir` were not overridden.
    if loaded.run_file is not None:
        run = run_around(loaded.run_file.parent)
        if run is not None:
            return run.path, True
    return runs_of(loaded.config) / loaded.name, False


def claim_folder(wanted: WantedRun, world: World) -> tuple[RunFolder, str]:
    """Choose the folder of a run and lock it.

    Only rank 0 holds the lock, since only rank 0 writes.

    Returns:
        The folder, and a line for the user if the folder that was named is taken, or else "".

    Raises:
        CheckpointError: another process trains that run, or has just taken its name.
    """
    choice = world.rank_zero(lambda: choose_folder(wanted))
    run = RunFolder(choice.folder)
    world.rank_zero(lambda: _lock(run, wanted))
    return run, choice.line


def _lock(run: RunFolder, wanted: WantedRun) -> None:
    """Lock the chosen folder, and check that it would still be chosen.

    A folder can be locked only after it is chosen. In between, another process may have trained a
    run in it, so that the choice is made again under the lock.
    """
    run.lock()
    try:
        if choose_folder(wanted).folder != run.path:
            raise CheckpointError(
                f"another process has just trained {run.path}; give the command again"
            )
    except BaseException:
        run.unlock()
        raise


def choose_folder(wanted: WantedRun) -> Choice:
    """Return the folder of the existing run that is wanted, or else that of a new run.

    A new run takes the first free name of NAME, NAME-2, NAME-3, ... Nothing is written.
    """
    folder, is_config_of_run = _named_folder(wanted.loaded)
    if RunFolder(folder).is_checkpoint:
        raise CheckpointError(
            f"{folder} exists already, and is a checkpoint, not a run; choose another name with "
            "run.name=NAME"
        )
    runs = _runs_of_name(folder, wanted.loaded.name)
    if isinstance(wanted.resume, Path):
        # The run that contains the checkpoint is continued, whatever differs: `check_fits` later
        # refuses it if it does not fit. `folder` is tried too, since `runs` does not list it if its
        # config.yaml is lost.
        for run in [folder, *runs]:
            if run.resolve() in wanted.resume.resolve().parents:
                return Choice(run)
    changes = {run: wanted.changes_of(run) for run in runs}
    if is_config_of_run:
        # The configuration in a run's folder means that run, even if another run differs less. So
        # this run is tried alone first. Without a config.yaml it has nothing to differ from.
        changes_of_folder = changes.get(folder, [])
        run_of_config = _find_run({folder: changes_of_folder}, wanted)
        if run_of_config is not None:
            return Choice(run_of_config)
    existing = _find_run(changes, wanted)
    if existing is not None:
        return Choice(existing)
    new_folder = _free_folder(folder)
    if not changes:
        return Choice(new_folder)  # no other run has this name
    return Choice(new_folder, _explain_new_name(changes, new_folder, wanted))


def _runs_of_name(folder: Path, name: str) -> list[Path]:
    """Return the folders of the runs with a `run.name`: NAME first, then NAME-2, NAME-3, ...

    Args:
        folder: the folder NAME.
        name: the `run.name`. It is another one than NAME if a user has renamed the folder.
    """
    folders_by_number: dict[int, Path] = {}
    siblings = folder.parent.iterdir() if folder.parent.is_dir() else ()
    for path in siblings:
        if not path.name.startswith(folder.name):
            continue
        match = _NUMBER_SUFFIX.fullmatch(path.name.removeprefix(folder.name))
        # A checkpoint that a user has saved or copied here has a config.yaml too, but is no run.
        if match and not RunFolder(path).is_checkpoint:
            folders_by_number[int(match[1])] = path
    runs = [folder] if _has_run(folder) else []
    for _, path in sorted(folders_by_number.items()):
        # The folder NAME-2 may have a run that a user has named NAME-2. The configuration of that
        # run has the name NAME-2, whereas a second run of NAME has NAME.
        if _configured_name(path) == name:
            runs.append(path)
    return runs


def _configured_name(folder: Path) -> Any:
    """Return `run.name` in the configuration of the run in a folder.

    None means that there is no run, or that its configuration cannot be read.
    """
    try:
        return _read_document(folder)["run"]["name"]
    except (ConfigError, KeyError, TypeError):
        return None


def _has_run(folder: Path) -> bool:
    return (folder / "config.yaml").is_file()


def _find_run(changes: dict[Path, list[str]], wanted: WantedRun) -> Path | None:
    """Return the existing run that is wanted, or None if a new run is wanted.

    The first run with the same configuration and text is wanted. If there is no such run,
    `--resume auto` chooses

    - a run that differs only in that it has fewer steps;
    - or else the last run, if it is not finished: the user probably means it and has changed a key
      by mistake, and `check_fits` refuses it with a list of the changes;
    - or else the first run, which has the name as given, if its configuration may change.

    Args:
        changes: the existing runs, NAME first, each with what differs from it.
    """
    same_runs = [run for run, changes_of_run in changes.items() if not changes_of_run]
    if same_runs:
        return same_runs[0]
    if wanted.resume != AUTO or not changes:
        return None
    runs = list(changes)
    for run in runs:
        if not wanted.changes_of(run, may_be_longer=True):
            return run
    last_run = runs[-1]
    if not _is_finished(last_run):
        return last_run
    return runs[0] if wanted.allow_config_change else None


def _free_folder(folder: Path) -> Path:
    """Return the folder NAME if it has no run, or the first of NAME-2, ... that does not exist."""
    if not _has_run(folder):
        return folder
    numbered = (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2))
    # No folder can be made at the name of a broken link. `lexists` finds such a link, and `exists`
    # does not.
    return next(path for path in numbered if not os.path.lexists(path))


def _explain_new_name(changes: dict[Path, list[str]], new: Path, wanted: WantedRun) -> str:
    """Return how a new run differs from the most similar run, and how to go on from that run.

    Args:
        changes: the existing runs, each with what differs from it.
        new: the folder of the new run.
    """
    # The run with the fewest changes is the most similar. Of several such runs `min` returns the
    # first, which in reversed order is the last one, and that was probably used most recently.
    old = min(reversed(changes), key=lambda run: len(changes[run]))
    message = (
        f"{old} is a run of another configuration ({'; '.join(changes[old])}), and stays; "
        f"this run is {new}"
    )
    if changes[old] != [OTHER_TEXT]:
        return message
    # Only the text differs, so that a new run can begin with the weights of the old one.
    existing = RunFolder(old).config()
    assert existing is not None  # otherwise its text would not have been compared
    arguments = ["--config", str(old / "config.yaml"), *plugin_options(), f"train.init_from={old}"]
    # The command takes the configuration of the old run, so that it has to name the new text.
    for key in ("path", "val_path", "test_path"):
        path = getattr(wanted.config.data, key)
        if getattr(existing.data, key) != path:
            arguments.append(override(f"data.{key}", path))
    command = command_line("train", *arguments)
    return f"{message}; to begin with what {old} has learned: {command}"


def _last_state(run: RunFolder) -> dict[str, Any]:
    """Return the state of a run's last checkpoint.

    The state is empty if the checkpoint is missing or damaged. That is an error only if the run is
    resumed, and is reported then.
    """
    folder = run.pointed("last")
    try:
        return {} if folder is None else read_state(folder)
    except CheckpointError:
        return {}


def _is_finished(folder: Path) -> bool:
    """Return whether a run has made its last step and evaluated it.

    A run that cannot be read counts as not finished.
    """
    try:
        # A loss term may come from a plugin that is not loaded, for which the section would be
        # refused. Terms do not matter here, and are left out.
        section = {**_read_document(folder)["train"], "loss_terms": {}}
        train = TrainConfig.model_validate(section)
        # `from_dict` raises CheckpointError if no state could be read.
        state = TrainingState.from_dict(_last_state(RunFolder(folder)))
        return state.is_over(train)
    except (ConfigError, CheckpointError, KeyError, TypeError, ValidationError):
        return False


def _read_document(folder: Path) -> dict[str, Any]:
    """Return the sections of a run's configuration as they are written, unchecked.

    A check would refuse components of a plugin that is not loaded.
    """
    file = folder / "config.yaml"
    document, _ = parse_document(read_yaml(file), str(file))
    return document.data
