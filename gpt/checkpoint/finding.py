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
"""Folder in which a run is looked for by its name: the default of `run.dir`."""
SHOWN_RUNS = 5
"""How many runs a message about a missing run lists."""


def run_around(folder: Path) -> RunFolder | None:
    """Return the run that a folder belongs to; None if it belongs to none.

    The folder may be the run's own folder or that of one of its checkpoints.
    """
    if folder.name in ("", ".."):
        # `.` and `..` do not tell the folder's name. Path.absolute would keep the `..`, and
        # Path.resolve would follow links.
        folder = Path(os.path.abspath(folder))  # noqa: PTH100
    places = [folder]
    parent = folder.parent
    if parent.name in ("", ".."):  # as of `step-10`, which is given inside of `checkpoints`
        parent = Path(os.path.abspath(parent))  # noqa: PTH100
    if parent.name == "checkpoints":
        places.append(parent.parent)
    for place in places:
        run = RunFolder(place)
        if run.has_checkpoints:
            return run
    return None


def find_checkpoint(path: Path | None, runs: Path, prefer: str = "best") -> Path:
    """Find the checkpoint folder that a user means.

    Args:
        path: a run folder, a checkpoint folder, or `best` or `last` in a run folder; either a path
            or a name below `runs`. None means the newest run in `runs`.
        runs: the folder of all runs.
        prefer: `best` or `last`, for a run folder that has both.
    """
    if path is None:
        path = _newest_run(runs)
    text_message = text_for_path(path)
    if text_message is not None:
        raise CheckpointError(f"{text_message}; give a run folder or a checkpoint folder")
    place = find_place(path, runs)
    if place is None:
        raise CheckpointError(f"{path}: no such run or checkpoint{similar_run(path, runs)}")
    if (place / MANIFEST).is_file():
        return place

    # What is left is a run folder, or `best` or `last` in one, for which alone `find_place` returns
    # a path that does not exist.
    is_pointer = not place.exists()
    run = RunFolder(place.parent if is_pointer else place)
    pointer = place.name if is_pointer else prefer
    damaged = run.damaged_pointer(pointer)
    if damaged is not None:
        raise CheckpointError(f"{damaged}; give a folder in {run.path / 'checkpoints'} instead")
    found = run.pointed(pointer)
    if found is None and not is_pointer:
        # The user named the run only, so that any of its checkpoints will do: there is no best one
        # before the first evaluation.
        found = run.pointed("last") or next(iter(run.checkpoints()), None)
    if found is None:
        raise CheckpointError(f"{place} holds no checkpoint; train first, or give another run")
    return found


def find_run(path: Path, runs: Path = RUNS) -> Path:
    """Find the folder of a run that a user means, by its path or by its name below `runs`.

    A run that has saved no checkpoint yet is found too, unlike by `find_checkpoint`.

    Raises:
        CheckpointError: there is nothing at that path and no run of that name, or the text of a
            corpus was given in place of a path.
    """
    text_message = text_for_path(path)
    if text_message is not None:
        raise CheckpointError(f"{text_message}; give a run folder")
    place = find_place(path, runs)
    if place is None:
        raise CheckpointError(f"{path}: no such run{similar_run(path, runs)}")
    return place


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
            f"{checkpoint} belongs to no run, whose configuration could be taken; {remedy}"
        )
    file = run.path / "config.yaml"
    if not file.is_file():
        raise CheckpointError(f"the run {run.path} has lost its config.yaml; {remedy}")
    return file


def name_of_model(checkpoint: Path, config: Config) -> str:
    """Return the name under which the model of a checkpoint is shown.

    The name of the run's folder is preferred to `run.name`: a second run of that name has a number
    in the name of its folder, and a user may have renamed it.
    """
    run = run_around(checkpoint)
    if run is not None:
        return run.path.absolute().name
    return config.run.name or checkpoint.name


def find_place(path: Path, runs: Path) -> Path | None:
    """Return the path of a run, a checkpoint, `best` or `last`: as given, or else in `runs`.

    A file in the folder of a run or a checkpoint means that folder. A path that leads to anything
    else, such as a folder of the same name, is taken only if there is no such run in `runs`. None
    means that there is nothing at either path.
    """
    places = [path, runs / path]  # of an absolute path, both are the path itself
    for place in places:
        folder = _folder_of(place)
        if holds_model(folder):
            # `best` and `last` are returned as they are, for `find_checkpoint`.
            return folder if place.is_file() else place
    for place in places:
        if _folder_of(place).exists():
            return place
    return None


def holds_model(folder: Path) -> bool:
    """Return whether a folder is a checkpoint, or the folder of a run that has saved one."""
    # config.yaml is required because other programs write a manifest.json too.
    if not (folder / "config.yaml").is_file():
        return False
    run = RunFolder(folder)
    return run.is_checkpoint or run.has_checkpoints


def _folder_of(place: Path) -> Path:
    """Return the folder that contains a file or a pointer; any other path is returned as it is."""
    # `best` is no file: the pointer's own file is best.json.
    is_pointer = place.name in ("best", "last") and not place.exists()
    if is_pointer or place.is_file():
        return place.parent
    return place


def similar_run(path: Path, runs: Path) -> str:
    """Return the end of a message about a missing path.

    It suggests a folder with a similar name, or else lists the newest runs.
    """
    # A path that begins with the name of a run is meant below `runs`.
    if path.parts and (runs / path.parts[0]).is_dir():
        path = runs / path
    # The first missing part of the path is the one that is misspelled.
    while not path.parent.exists():
        path = path.parent
    # A name without a folder is looked for among the runs, and not in the current folder.
    place = path.parent if path.parent != Path() else runs
    folders = [entry.name for entry in place.glob("*") if entry.is_dir()]
    suggestion = nearest(path.name, folders)
    if suggestion:
        return suggestion
    newest = _newest_first(runs)[:SHOWN_RUNS]
    if not newest:
        return ""
    names = ", ".join(run.name for run in newest)
    return f"; {runs} has {names}"


def _newest_first(runs: Path) -> list[Path]:
    """Return the folders of all runs that have saved a checkpoint, the latest save first.

    A training writes last.json anew at each save, so that its time is that of the save.
    """
    pointers = [file for file in runs.glob("*/last.json") if file.is_file()]
    pointers.sort(key=lambda file: file.stat().st_mtime, reverse=True)
    return [pointer.parent for pointer in pointers]
