"""The folder of a run: the one its configuration lies in, or NAME, or NAME-2 beside another run.

The configuration in a run's folder says which `run.name` was wanted: NAME also in the folder
NAME-2. This tells NAME-2 from a run that a person has called so.
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
"""What a list of changes says of a run whose text differs."""
_NUMBER_SUFFIX = re.compile(r"-([2-9]|[1-9][0-9]{1,2})")
"""What is added to the name of a run, from -2 to -999.

Four digits are rather a year, or the date in the name of another run.
"""


@dataclass(frozen=True)
class WantedRun:
    """What a training asks for, by which the runs that exist are compared.

    Attributes:
        loaded: says where the configuration was read.
        config: the same configuration as it will be trained; `run.name` is filled in.
        data: None where the run's checkpoint may bring the tokenizer. Texts are not compared then.
        resume: None, `auto`, or the folder of a checkpoint.
    """

    loaded: LoadedConfig
    config: Config
    data: Dataset | None
    resume: str | Path | None
    allow_config_change: bool

    def changes_of(self, folder: Path, may_be_longer: bool = False) -> list[str]:
        """Return `key: old -> new` for what differs from the run in a folder.

        Args:
            may_be_longer: whether more steps than that run has are no difference.
        """
        run = RunFolder(folder)
        try:
            existing = run.config()
        except ConfigError as error:
            # It is damaged, or names a component of a plugin that is not loaded here.
            return [f"it cannot be read here: {first_line(error)}"]
        if existing is None:
            return []
        changes = differences_of_existing(existing, self.config, may_be_longer)
        if self.data is not None:
            # A run without a readable checkpoint names no text, and is taken to have the same.
            fingerprint = _last_state(run).get("data", self.data.fingerprint)
            if fingerprint != self.data.fingerprint:
                changes.append(OTHER_TEXT)
        return changes


@dataclass(frozen=True)
class Choice:
    """The folder of a training, and a line for the user if it is not the one that was meant."""

    folder: Path
    line: str = ""


def _named_folder(loaded: LoadedConfig) -> tuple[Path, bool]:
    """Return the folder that a configuration means, and whether it was read from that folder.

    The configuration in a run's folder means that run, even if a user has moved or renamed the
    folder. Any other one means the folder that `run.dir` and `run.name` name.
    """
    if loaded.run_file is not None:
        run = run_around(loaded.run_file.parent)
        if run is not None:
            return run.path, True
    return runs_of(loaded.config) / loaded.name, False


def claim_folder(wanted: WantedRun, world: World) -> tuple[RunFolder, str]:
    """Choose the folder of a run and lock it.

    Return the folder, and a line for the user, which is empty if the folder is the one that was
    meant. Rank 0 alone holds the lock, since it alone writes.

    Raises:
        CheckpointError: another process trains that run, or has just taken its name.
    """
    choice = world.rank_zero(lambda: choose_folder(wanted))
    run = RunFolder(choice.folder)
    world.rank_zero(lambda: _lock(run, wanted))
    return run, choice.line


def _lock(run: RunFolder, wanted: WantedRun) -> None:
    """Lock the folder that was chosen, and make sure that it would still be chosen.

    A lock needs a path, so that another process may take the name between the choice and the lock.
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
    """Return the folder of a run that is continued, or exists already, or of a new one.

    A new run takes the first name that is free: NAME, NAME-2, NAME-3, ... Nothing is written.
    """
    folder, is_config_of_run = _named_folder(wanted.loaded)
    if RunFolder(folder).is_checkpoint:
        raise CheckpointError(
            f"{folder} exists already, and is a checkpoint, not a run; choose another name with "
            "run.name=NAME"
        )
    runs = _runs_of_name(folder, wanted.loaded.name)
    if isinstance(wanted.resume, Path):
        # A run that holds the checkpoint is continued, whatever differs: `check_fits` compares it.
        for run in [folder, *runs]:
            if run.resolve() in wanted.resume.resolve().parents:
                return Choice(run)
    changes = {run: wanted.changes_of(run) for run in runs}
    if is_config_of_run:
        # The configuration in a run's folder means that run, also where another one differs less:
        # it is looked at alone first. Where only its checkpoints are left, nothing is compared.
        run_of_config = _find_run({folder: changes.get(folder, [])}, wanted)
        if run_of_config is not None:
            return Choice(run_of_config)
    existing = _find_run(changes, wanted)
    if existing is not None:
        return Choice(existing)
    new = _free_name(folder)
    # Nobody needs to hear of a new run that has the name that was wanted.
    line = _why_another(changes, new, wanted) if changes else ""
    return Choice(new, line)


def _runs_of_name(folder: Path, name: str) -> list[Path]:
    """Return the folders that hold a run of a name: NAME first, then NAME-2, NAME-3, ..."""
    numbered: dict[int, Path] = {}
    siblings = folder.parent.iterdir() if folder.parent.is_dir() else ()
    for path in siblings:
        if not path.name.startswith(folder.name):
            continue
        match = _NUMBER_SUFFIX.fullmatch(path.name.removeprefix(folder.name))
        # A checkpoint that was saved or copied here has the configuration of its run too.
        if match and not RunFolder(path).is_checkpoint:
            numbered[int(match[1])] = path
    runs = [folder] if _is_taken(folder) else []
    for _, path in sorted(numbered.items()):
        # A person may have called another run NAME-2: that one wants the name NAME-2.
        if _wanted_name(path) == name:
            runs.append(path)
    return runs


def _wanted_name(folder: Path) -> Any:
    """Return the name that was wanted for the run in a folder.

    None means that there is no run, or that its configuration cannot be read.
    """
    try:
        return _read_document(folder)["run"]["name"]
    except (ConfigError, KeyError, TypeError):
        return None


def _is_taken(folder: Path) -> bool:
    return (folder / "config.yaml").is_file()


def _find_run(changes: dict[Path, list[str]], wanted: WantedRun) -> Path | None:
    """Return the existing run that is asked for, or None if a new one is.

    It is the first run of the same configuration and text. With `--resume auto` it may also be

    - a run that differs only in that it has fewer steps;
    - or else the last run, if it is not finished: `check_fits` then refuses what differs;
    - or else the first run, if its configuration may change.

    Args:
        changes: what differs from the configuration of each existing run.
    """
    same = [run for run, changes_of_run in changes.items() if not changes_of_run]
    if same:
        return same[0]
    if wanted.resume != AUTO or not changes:
        return None
    for run in changes:
        if not wanted.changes_of(run, may_be_longer=True):
            return run
    first, *_ = changes
    *_, last = changes
    if not _is_finished(last):
        return last
    return first if wanted.allow_config_change else None


def _free_name(folder: Path) -> Path:
    """Return NAME if no run has it, or the first of NAME-2, ... at which there is nothing."""
    if not _is_taken(folder):
        return folder
    numbered = (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2))
    # A link that leads nowhere takes a name too, but does not `exist`.
    return next(each for each in numbered if not os.path.lexists(each))


def _why_another(changes: dict[Path, list[str]], new: Path, wanted: WantedRun) -> str:
    """Return how a new run differs from the one most like it, and how to go on from that."""
    # Of several that are equally like it, the last one: it was probably in use most recently.
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
    again = ["--config", str(old / "config.yaml"), *plugin_options(), f"train.init_from={old}"]
    for key in ("path", "val_path", "test_path"):
        path = getattr(wanted.config.data, key)
        if getattr(existing.data, key) != path:
            again.append(override(f"data.{key}", path))
    return f"{message}; to begin with what {old} has learned: {command_line('train', *again)}"


def _last_state(run: RunFolder) -> dict[str, Any]:
    """Return the state of a run's last checkpoint.

    It is empty where the checkpoint is missing or damaged, which only a resume has to report.
    """
    folder = run.pointed("last")
    try:
        return {} if folder is None else read_state(folder)
    except CheckpointError:
        return {}


def _is_finished(folder: Path) -> bool:
    """Return whether a run has made all of its steps.

    Loss terms may be of plugins that are not loaded here, and so are not checked.
    """
    try:
        keys = {**_read_document(folder)["train"], "loss_terms": {}}
        train = TrainConfig.model_validate(keys)
        state = TrainingState.from_dict(_last_state(RunFolder(folder)))
        return state.is_over(train)
    except (ConfigError, CheckpointError, KeyError, TypeError, ValidationError):
        return False


def _read_document(folder: Path) -> dict[str, Any]:
    """Return the sections of a run's configuration as they are written, unchecked.

    A check would refuse the names of a plugin that is not loaded.
    """
    file = folder / "config.yaml"
    document, _ = parse_document(read_yaml(file), str(file))
    return document.data
