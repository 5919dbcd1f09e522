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
"""The entry of a list of changes that says that the text of a run differs."""
_NUMBER_SUFFIX = re.compile(r"-([2-9]|[1-9][0-9]{1,2})")
"""The end of a folder's name beside other runs of the same name, from -2 to -999.

A number of four digits is more likely a year in the name of another run.
"""


@dataclass(frozen=True)
class WantedRun:
    """What a training asks for; existing runs are compared with it.

    Attributes:
        loaded: the configuration as it was read, and where.
        config: the same configuration as it will be trained; `run.name` is filled in.
        data: None if the tokenizer may come from a checkpoint; then texts are not compared.
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
        changes = differences_of_existing(existing, self.config, may_be_longer)
        if self.data is not None:
            # A run without a readable checkpoint does not say which text it has. The text is then
            # assumed to be the same.
            old_fingerprint = _last_state(run).get("data", self.data.fingerprint)
            if old_fingerprint != self.data.fingerprint:
                changes.append(OTHER_TEXT)
        return changes


@dataclass(frozen=True)
class Choice:
    """The folder of a training, and a line for the user if another folder was meant."""

    folder: Path
    line: str = ""


def _named_folder(loaded: LoadedConfig) -> tuple[Path, bool]:
    """Return the folder that a configuration means, and whether the configuration lies in it.

    The configuration in a run's folder means that run, even if a user has moved or renamed the
    folder. Any other configuration means the folder `run.name` below `run.dir`.
    """
    # `run_file` is the file of the configuration, if it is one that may lie in a run's folder.
    if loaded.run_file is not None:
        run = run_around(loaded.run_file.parent)
        if run is not None:
            return run.path, True
    return runs_of(loaded.config) / loaded.name, False


def claim_folder(wanted: WantedRun, world: World) -> tuple[RunFolder, str]:
    """Choose the folder of a run and lock it.

    Only rank 0 holds the lock, since only rank 0 writes.

    Returns:
        The folder, and a line for the user, which is empty if this folder was meant.

    Raises:
        CheckpointError: another process trains that run, or has just taken its name.
    """
    choice = world.rank_zero(lambda: choose_folder(wanted))
    run = RunFolder(choice.folder)
    world.rank_zero(lambda: _lock(run, wanted))
    return run, choice.line


def _lock(run: RunFolder, wanted: WantedRun) -> None:
    """Lock the chosen folder, and check that it would still be chosen.

    The folder is locked only after it is chosen. Another process may take its name in between.
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
        # refuses it if it does not fit. `runs` does not have a folder without a configuration.
        for run in [folder, *runs]:
            if run.resolve() in wanted.resume.resolve().parents:
                return Choice(run)
    changes = {run: wanted.changes_of(run) for run in runs}
    if is_config_of_run:
        # The configuration in a run's folder means that run, even if another run differs less. So
        # this run is tried alone first. It has no changes if only its checkpoints are left.
        run_of_config = _find_run({folder: changes.get(folder, [])}, wanted)
        if run_of_config is not None:
            return Choice(run_of_config)
    existing = _find_run(changes, wanted)
    if existing is not None:
        return Choice(existing)
    new = _free_folder(folder)
    # Without other runs of that name the new run has the name that was wanted.
    line = _why_another(changes, new, wanted) if changes else ""
    return Choice(new, line)


def _runs_of_name(folder: Path, name: str) -> list[Path]:
    """Return the folders of the runs that wanted a name: NAME first, then NAME-2, NAME-3, ..."""
    folders_by_number: dict[int, Path] = {}
    siblings = folder.parent.iterdir() if folder.parent.is_dir() else ()
    for path in siblings:
        if not path.name.startswith(folder.name):
            continue
        match = _NUMBER_SUFFIX.fullmatch(path.name.removeprefix(folder.name))
        # A checkpoint that was saved or copied here has the configuration of a run, but is no run.
        if match and not RunFolder(path).is_checkpoint:
            folders_by_number[int(match[1])] = path
    runs = [folder] if _has_run(folder) else []
    for _, path in sorted(folders_by_number.items()):
        # A user may have named another run NAME-2. The name that was wanted for it is NAME-2.
        if _wanted_name(path) == name:
            runs.append(path)
    return runs


def _wanted_name(folder: Path) -> Any:
    """Return the name that was wanted for the run in a folder: `run.name` of its configuration.

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
    `--resume auto` wants

    - a run that differs only in that it has fewer steps;
    - or else the last run, if it is not finished: `check_fits` then refuses it with its changes;
    - or else the first run, if its configuration may change.

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
    # A broken link takes a name too. `lexists` finds such a link, and `exists` does not.
    return next(path for path in numbered if not os.path.lexists(path))


def _why_another(changes: dict[Path, list[str]], new: Path, wanted: WantedRun) -> str:
    """Return how a new run differs from the most similar run, and how to go on from that run.

    Args:
        changes: the existing runs, each with what differs from it.
        new: the folder of the new run.
    """
    # `min` returns the first of several equally similar runs. In the reversed order this is the
    # last one, which was probably used most recently.
    old = min(reversed(changes), key=lambda run: len(changes[run]))
    message = (
        f"{old} is a run of another configuration ({'; '.join(changes[old])}), and stays; "
        f"this run is {new}"
    )
    if changes[old] != [OTHER_TEXT]:
        return message
    # Only the text differs, so that a new run can begin with the weights of the old one.
    existing = RunFolder(old).config()
    assert existing is not None
    arguments = ["--config", str(old / "config.yaml"), *plugin_options(), f"train.init_from={old}"]
    for key in ("path", "val_path", "test_path"):
        path = getattr(wanted.config.data, key)
        if getattr(existing.data, key) != path:
            arguments.append(override(f"data.{key}", path))
    command = command_line("train", *arguments)
    return f"{message}; to begin with what {old} has learned: {command}"


def _last_state(run: RunFolder) -> dict[str, Any]:
    """Return the state of a run's last checkpoint.

    The state is empty if the checkpoint is missing or damaged, which only a resume has to report.
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
        # Loss terms may belong to plugins that are not loaded, and would then be refused.
        section = {**_read_document(folder)["train"], "loss_terms": {}}
        train = TrainConfig.model_validate(section)
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
