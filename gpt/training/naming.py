"""The folder of a run: that in which its configuration lies, or NAME, or NAME-2 if NAME is another run.

The configuration of a run says the `run.name` that was wanted, NAME also in the folder NAME-2: by that it is told from
one that a person has named NAME-2.
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
from gpt.system.environment import expand_home
from gpt.system.errors import CheckpointError, ConfigError, first_line
from gpt.system.invocation import command_line
from gpt.training.resume import AUTO, differences_of_existing
from gpt.training.training_state import TrainingState

OTHER_TEXT = "data: another text"
_NUMBER = re.compile(r"-([2-9]|[1-9][0-9]{1,2})")
"""What is added to a name; a year or a date is rather a part of another run's own name."""


@dataclass(frozen=True)
class Choice:
    """The folder of a training, and a line for the user if it is not the one that the configuration names."""

    folder: Path
    line: str = ""


@dataclass(frozen=True)
class Wanted:
    """What a training asks for, by which runs are compared.

    Attributes:
        resume: None, `auto`, or the folder of a checkpoint.
        data: None where it is not known before the run's checkpoint.
    """

    config: Config
    data: Dataset | None
    resume: str | Path | None
    allow_config_change: bool

    def changes_of(self, folder: Path, longer: bool = False) -> list[str]:
        """Return `key: old -> new` for what differs from the run in a folder, which may get `longer`."""
        run = RunFolder(folder)
        try:
            existing = run.config()
        except ConfigError as error:  # it is damaged, or names what a plugin adds
            return [f"it cannot be read here: {first_line(error)}"]
        if existing is None:
            return []
        changes = differences_of_existing(existing, self.config, longer)
        if self.data is not None and _last_state(run).get("data", self.data.fingerprint) != self.data.fingerprint:
            changes.append(OTHER_TEXT)
        return changes


def named_folder(loaded: LoadedConfig) -> tuple[Path, bool]:
    """Return the folder that a configuration means, and whether that is the one in which it lies.

    The configuration of a run is that run wherever its folder is, and whatever it is called.
    """
    if loaded.run_file is not None:
        run = run_around(loaded.run_file.parent)
        if run is not None:
            return run.path, True
    return runs_of(loaded.config) / loaded.name, False


def runs_of(config: Config) -> Path:
    """Return the folder in which runs that are named are looked for."""
    return expand_home(config.run.dir, "run.dir")


def choose_folder(loaded: LoadedConfig, wanted: Wanted) -> Choice:
    """Return the folder of a run that is continued, or is there already, or of a new one.

    A new run takes the first name that is free: NAME, NAME-2, NAME-3, ... Nothing is written.
    """
    named, is_own = named_folder(loaded)
    if RunFolder(named).is_checkpoint:
        raise CheckpointError(
            f"{named} exists already, and is a checkpoint, not a run; choose another name with run.name=NAME"
        )
    changes = {run: wanted.changes_of(run) for run in _runs_of_name(named, loaded.name)}
    if isinstance(wanted.resume, Path):
        holding = [run for run in [named, *changes] if run.resolve() in wanted.resume.resolve().parents]
        if holding:
            return Choice(holding[0])
    if is_own and _find({named: changes.get(named, [])}, wanted) is not None:
        return Choice(named)
    found = _find(changes, wanted)
    if found is not None:
        return Choice(found)
    free = _free_name(named)
    return Choice(free, _why_another(changes, free, wanted) if changes else "")


def _runs_of_name(named: Path, name: str) -> list[Path]:
    """Return the folders that hold a run: NAME, and those of NAME-2, ... for which `name` was wanted, in this order."""
    numbered: dict[int, Path] = {}
    beside = named.parent.iterdir() if named.parent.is_dir() else ()
    for path in beside:
        number = _NUMBER.fullmatch(path.name.removeprefix(named.name))
        # a model that was saved, or copied, has the configuration of its run too
        if path.name.startswith(named.name) and number and not RunFolder(path).is_checkpoint:
            numbered[int(number[1])] = path
    ours = [numbered[number] for number in sorted(numbered) if _wanted_name(numbered[number]) == name]
    return [named, *ours] if _is_taken(named) else ours


def _wanted_name(folder: Path) -> Any:
    """Return the name that was wanted for the run in a folder; None if there is none, or it cannot be read."""
    try:
        return _read_document(folder)["run"]["name"]
    except (ConfigError, KeyError, TypeError):
        return None


def _is_taken(folder: Path) -> bool:
    return (folder / "config.yaml").is_file()


def _find(changes: dict[Path, list[str]], wanted: Wanted) -> Path | None:
    """Return the run that is asked for, by what differs from each.

    That is one of the same configuration and text. `auto` also continues one that is only to be longer; and it means
    the last one where that is not finished, or the first one if its configuration may change.
    """
    same = [run for run in changes if not changes[run]]
    if wanted.resume != AUTO or same or not changes:
        return same[0] if same else None
    longer = [run for run in changes if not wanted.changes_of(run, longer=True)]
    if longer:
        return longer[0]
    first, last = next(iter(changes)), next(reversed(changes))
    if not _is_finished(last):
        return last
    return first if wanted.allow_config_change else None


def _free_name(named: Path) -> Path:
    """Return NAME, or the first of NAME-2, ... at which there is nothing, whatever else may be there."""
    if not _is_taken(named):
        return named
    numbered = (named.with_name(f"{named.name}-{number}") for number in itertools.count(2))
    return next(folder for folder in numbered if not os.path.lexists(folder))


def _why_another(changes_of: dict[Path, list[str]], new: Path, wanted: Wanted) -> str:
    """Return the line that says how a new run differs from the one most like it, and how to go on from that."""
    old = min(reversed(changes_of), key=lambda run: len(changes_of[run]))
    changes = changes_of[old]
    line = f"{old} is a run of another configuration ({'; '.join(changes)}), and stays; this run is {new}"
    if changes != [OTHER_TEXT]:
        return line
    existing = RunFolder(old).config()
    assert existing is not None
    again = ["--config", str(old / "config.yaml"), *plugin_options(), f"train.init_from={old}"]
    if existing.data.path != wanted.config.data.path:
        again.append(override("data.path", wanted.config.data.path))
    return f"{line}; to begin with what {old} has learned: {command_line('train', *again)}"


def _last_state(run: RunFolder) -> dict[str, Any]:
    """Return the state of a run's last checkpoint; none where it is missing or damaged, which a resume reports."""
    folder = run.pointed("last")
    try:
        return {} if folder is None else read_state(folder)
    except CheckpointError:
        return {}


def _is_finished(folder: Path) -> bool:
    """Return whether a run has made all of its steps, by what can be read without its plugins."""
    try:
        train = TrainConfig(max_steps=_read_document(folder)["train"]["max_steps"])
        return TrainingState.from_dict(_last_state(RunFolder(folder))).is_over(train)
    except (ConfigError, CheckpointError, KeyError, TypeError, ValidationError):
        return False


def _read_document(folder: Path) -> dict[str, Any]:
    """Return what the configuration of a run says, by section, also where that names what a plugin adds."""
    file = folder / "config.yaml"
    document, _ = parse_document(read_yaml(file), str(file))
    return document.data
