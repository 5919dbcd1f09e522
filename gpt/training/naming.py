"""The folder of a run: that in which its configuration lies, or NAME, or NAME-2 if NAME is another run."""

import itertools
import re
from collections.abc import Sequence
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
    runs = _runs_of_name(named)
    if isinstance(wanted.resume, Path):
        holding = [run for run in [named, *runs] if run.resolve() in wanted.resume.resolve().parents]
        if holding:
            return Choice(holding[0])
    for group in ([named] if is_own else [], runs):
        found = _find(group, wanted)
        if found is not None:
            return Choice(found)
    free = _free_name(named, runs)
    return Choice(free, _why_another(runs, free, wanted) if runs else "")


def _runs_of_name(named: Path) -> list[Path]:
    """Return the folders NAME, NAME-2, ... that hold a run, in this order."""
    numbered: dict[int, Path] = {}
    beside = named.parent.iterdir() if named.parent.is_dir() else ()
    for path in beside:
        number = _NUMBER.fullmatch(path.name.removeprefix(named.name))
        if path.name.startswith(named.name) and number:
            numbered[int(number[1])] = path
    folders = [named, *(numbered[number] for number in sorted(numbered))]
    return [folder for folder in folders if (folder / "config.yaml").is_file()]


def _find(runs: Sequence[Path], wanted: Wanted) -> Path | None:
    """Return the run that is asked for.

    That is one of the same configuration and text. `auto` also continues one that is only to be longer; and the last
    one that is not finished, or whose configuration may change, is what it means although the configuration differs.
    """
    same = [run for run in runs if not wanted.changes_of(run)]
    if wanted.resume == AUTO and not same:
        same = [run for run in runs if not wanted.changes_of(run, longer=True)]
    if wanted.resume == AUTO and not same and runs and (wanted.allow_config_change or not _is_finished(runs[-1])):
        return runs[-1]
    return same[0] if same else None


def _free_name(named: Path, runs: Sequence[Path]) -> Path:
    numbered = (named.with_name(f"{named.name}-{number}") for number in itertools.count(2))
    return next(folder for folder in itertools.chain([named], numbered) if folder not in runs)


def _why_another(runs: Sequence[Path], new: Path, wanted: Wanted) -> str:
    """Return the line that says how a new run differs from the one most like it, and how to go on from that."""
    old = min(reversed(runs), key=lambda run: len(wanted.changes_of(run)))
    changes = wanted.changes_of(old)
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
    file = folder / "config.yaml"
    try:
        document, _ = parse_document(read_yaml(file), str(file))
        train = TrainConfig(max_steps=document.data["train"]["max_steps"])
        return TrainingState.from_dict(_last_state(RunFolder(folder))).is_over(train)
    except (ConfigError, CheckpointError, KeyError, TypeError, ValidationError):
        return False
