"""Find the run or the checkpoint that a user means by a path."""

import os
from pathlib import Path

from gpt.checkpoint.manifest import MANIFEST
from gpt.checkpoint.runs import RunFolder
from gpt.config import Config
from gpt.config.suggestions import nearest
from gpt.system.errors import CheckpointError
from gpt.system.files import text_for_path
from gpt.system.invocation import command_line

RUNS = Path("runs")
"""The folder in which a run is looked for by its name: the default of `run.dir`."""
SHOWN_RUNS = 5
"""How many runs a message about a missing run lists."""


def run_around(folder: Path) -> RunFolder | None:
    """Return the run that a folder belongs to; None if there is none that has saved a checkpoint.

    The folder may be the run's own folder or that of one of its checkpoints.
    """
    if folder.name in ("", ".."):
        # The paths `.` and `..` do not contain the folder's name, which is compared below.
        # `Path.absolute` would keep the `..`, and `Path.resolve` would follow links.
        folder = Path(os.path.abspath(folder))  # noqa: PTH100
    run_folders = [folder]
    parent = folder.parent
    # The parent of a relative path with a single part, such as `step-10`, is `.` too.
    if parent.name in ("", ".."):
        parent = Path(os.path.abspath(parent))  # noqa: PTH100
    if parent.name == "checkpoints":
        run_folders.append(parent.parent)
    for run_folder in run_folders:
        run = RunFolder(run_folder)
        if run.has_checkpoints:
            return run
    return None


def find_checkpoint(path: Path | None, runs: Path, prefer: str = "best") -> Path:
    """Find the checkpoint folder that a user means.

    Args:
        path: a run folder, a checkpoint folder, or `best` or `last` in a run folder, by its path or
            by its name below `runs`. None means the newest run in `runs`.
        runs: the folder of all runs.
        prefer: the checkpoint of a run folder to take: `best` or `last`.

    Raises:
        CheckpointError: there is no such run or checkpoint, the run has no checkpoint or a damaged
            pointer, or the text of a corpus was given in place of a path.
    """
    if path is None:
        path = _newest_run(runs)
    text_message = text_for_path(path)
    if text_message is not None:
        raise CheckpointError(f"{text_message}; give a run folder or a checkpoint folder")
    target = find_place(path, runs)
    if target is None:
        raise CheckpointError(f"{path}: no such run or checkpoint{similar_run(path, runs)}")
    if (target / MANIFEST).is_file():
        return target

    # The target is a run folder, or RUN/best or RUN/last. The latter do not exist, since the files
    # of these pointers are best.json and last.json. Any other path from `find_place` exists.
    is_pointer = not target.exists()
    if is_pointer:
        run = RunFolder(target.parent)
        pointer = target.name
    else:
        run = RunFolder(target)
        pointer = prefer
    damaged = run.damaged_pointer(pointer)
    if damaged is not None:
        raise CheckpointError(f"{damaged}; give a folder in {run.path / 'checkpoints'} instead")
    checkpoint = run.pointed(pointer)
    if checkpoint is not None:
        return checkpoint
    newest = _newest_checkpoint(run)
    if newest is None:
        raise CheckpointError(f"{target} holds no checkpoint; train first, or give another run")
    # The run has checkpoints, but not the one that is looked for: before the first evaluation there
    # is no best one. If the user named only the run, its newest checkpoint is taken.
    if is_pointer:
        raise CheckpointError(f"{run.path} has no {pointer} checkpoint; give {newest} instead")
    return newest


def _newest_checkpoint(run: RunFolder) -> Path | None:
    """Return the checkpoint that a run has saved last; None if it has no checkpoint."""
    last = run.pointed("last")
    if last is not None:
        return last
    newest_first = run.checkpoints()
    return newest_first[0] if newest_first else None


def find_run(path: Path, runs: Path = RUNS) -> Path:
    """Find the folder of a run that a user means, by its path or by its name below `runs`.

    Unlike `find_checkpoint`, this function also finds a run that has saved no checkpoint yet.

    Raises:
        CheckpointError: there is nothing at that path and no run of that name, or the text of a
            corpus was given in place of a path.
    """
    text_message = text_for_path(path)
    if text_message is not None:
        raise CheckpointError(f"{text_message}; give a run folder")
    folder = find_place(path, runs)
    if folder is None:
        raise CheckpointError(f"{path}: no such run{similar_run(path, runs)}")
    return folder


def _newest_run(runs: Path) -> Path:
    newest_first = _newest_first(runs)
    if not newest_first:
        command = command_line("train", "--config", "quickstart")
        raise CheckpointError(f"no trained run below {runs}; train first: {command}")
    return newest_first[0]


def configuration_around(checkpoint: Path) -> Path:
    """Return the path of the configuration of the run that a checkpoint belongs to.

    Raises:
        CheckpointError: the checkpoint belongs to no run, or the run has no configuration.
    """
    remedy = "give a configuration by --config FILE (in Python config=FILE)"
    run = run_around(checkpoint)
    if run is None:
        raise CheckpointError(
            f"{checkpoint} belongs to no run that a configuration could be taken from; {remedy}"
        )
    file = run.path / "config.yaml"
    if not file.is_file():
        raise CheckpointError(f"the run {run.path} has lost its config.yaml; {remedy}")
    return file


def name_of_model(checkpoint: Path, config: Config) -> str:
    """Return the name under which the model of a checkpoint is shown.

    The name of the run's folder is preferred to `run.name`: the folder of a second run of that name
    has a number in its name, and a user may have renamed the folder.
    """
    run = run_around(checkpoint)
    if run is not None:
        return run.path.absolute().name
    return config.run.name or checkpoint.name


def find_place(path: Path, runs: Path) -> Path | None:
    """Return the path of a run, a checkpoint, `best` or `last`: as given, or else in `runs`.

    A file in the folder of a run or a checkpoint means that folder. A path to anything else, such
    as another folder with the name of a run, is returned only if `runs` has no such run. None means
    that nothing exists at either path.
    """
    candidates = [path, runs / path]  # if the path is absolute, both are the path itself
    # First a model is looked for at both paths, then anything that exists.
    for candidate in candidates:
        folder = _folder_of(candidate)
        if holds_model(folder):
            # RUN/best and RUN/last are returned as they are, for `find_checkpoint` to follow them.
            return folder if candidate.is_file() else candidate
    for candidate in candidates:
        if _folder_of(candidate).exists():
            return candidate
    return None


def holds_model(folder: Path) -> bool:
    """Return whether a folder is a checkpoint, or the folder of a run that has saved one."""
    # A manifest.json alone does not tell a checkpoint, since other programs use that name too.
    if not (folder / "config.yaml").is_file():
        return False
    run = RunFolder(folder)
    return run.is_checkpoint or run.has_checkpoints


def _folder_of(path: Path) -> Path:
    """Return the folder that contains a file or a pointer; return any other path as it is."""
    # A user writes RUN/best for the checkpoint that RUN/best.json names.
    is_pointer = path.name in ("best", "last") and not path.exists()
    if is_pointer or path.is_file():
        return path.parent
    return path


def similar_run(path: Path, runs: Path) -> str:
    """Return the end of a message about a missing path.

    The text suggests a folder with a similar name, or else lists the newest runs.
    """
    # A path such as NAME/step-10, where NAME is a run, is meant to be below `runs`.
    if path.parts and (runs / path.parts[0]).is_dir():
        path = runs / path
    # The path is cut after its first part that does not exist, which is probably misspelled.
    while not path.parent.exists():
        path = path.parent
    # A single name is meant to be that of a run, so that it is compared with the names of the runs,
    # and not with those in the current folder.
    parent = path.parent if path.parent != Path() else runs
    # `glob` finds nothing if the folder does not exist, for which `iterdir` would raise an error.
    folder_names = [entry.name for entry in parent.glob("*") if entry.is_dir()]
    suggestion = nearest(path.name, folder_names)
    if suggestion:
        return suggestion
    newest = _newest_first(runs)[:SHOWN_RUNS]
    if not newest:
        return ""
    names = ", ".join(run.name for run in newest)
    return f"; {runs} has {names}"


def _newest_first(runs: Path) -> list[Path]:
    """Return the folders of all runs that have saved a checkpoint, the latest save first.

    A training replaces last.json at each save, so that the time of that file is the time of the
    save.
    """
    pointers = [file for file in runs.glob("*/last.json") if file.is_file()]
    pointers.sort(key=lambda file: file.stat().st_mtime, reverse=True)
    return [pointer.parent for pointer in pointers]
