"""The folder of a run: its lock, its checkpoints, its `best` and `last` pointers, and the checkpoint a PATH means."""

import json
import os
import re
import shutil
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from gpt.checkpoint.folder import Checkpoint, read_checkpoint, read_state, write_checkpoint
from gpt.checkpoint.manifest import MANIFEST, verify_checkpoint
from gpt.config import Config
from gpt.config.loading import dump_config, parse_config, read_yaml
from gpt.config.suggestions import nearest
from gpt.system.errors import CheckpointError
from gpt.system.files import (
    MAX_SMALL_JSON_BYTES,
    make_folder,
    parse_json,
    read_file,
    text_for_path,
    write_atomic,
)
from gpt.system.invocation import command_line

_STEP = re.compile(r"step-(\d+)(\.old)?")
_STEP_FILE = re.compile(r"step-([0-9]{1,18})\.(txt|safetensors)")
MAX_VOCABULARY = 512
"""Snapshots leave out embeddings of more tokens: a map of them could not be read, and would take much of the disk."""
SHOWN_RUNS = 5
PROBE_SECONDS = 0.5
"""How long `lock` retries: `is_being_trained` probes by taking the lock for an instant."""


class RunFolder:
    """`runs/<name>`: config.yaml, logs, samples/, snapshots/, checkpoints/, best.json, last.json."""

    def __init__(self, path: Path) -> None:
        self.path, self.metrics = path, path / "metrics.jsonl"
        self.samples, self.snapshots = path / "samples", path / "snapshots"

    def snapshot(self, step: int) -> Path:
        return self.snapshots / f"{_folder_name(step)}.safetensors"

    @property
    def is_checkpoint(self) -> bool:
        """Whether the folder is itself a checkpoint, as `gpt quantize` writes one."""
        return (self.path / MANIFEST).is_file()

    @property
    def has_checkpoints(self) -> bool:
        """Whether a training has saved here, even if what it saved was deleted or damaged since."""
        return (self.path / "last.json").is_file() or bool(self._step_folders())

    def lock(self) -> None:
        """Keep other processes from training this run until `unlock` or the end of this process."""
        try:
            make_folder(Path(self._lock.lock_file).parent)
            self._lock.acquire(timeout=PROBE_SECONDS)
        except Timeout:
            raise CheckpointError(
                f"another process is training {self.path}; wait for it, or choose another name with run.name=NAME"
            ) from None
        except OSError as error:
            raise self._unwritable(error) from None

    def unlock(self) -> None:
        """Let other processes train this run; no effect if it is not locked."""
        if self._lock.is_locked:
            file = Path(self._lock.lock_file)
            with suppress(OSError):
                file.unlink()  # before the release: filelock checks that the file is still there
            self._lock.release()
            with suppress(OSError):
                file.parent.rmdir()  # if the run wrote nothing

    def is_being_trained(self) -> bool:
        """Return whether a process, this one or another, holds the lock."""
        if self._lock.is_locked or not Path(self._lock.lock_file).is_file():
            return self._lock.is_locked
        try:
            with self._lock.acquire(timeout=0):
                return False
        except Timeout:
            return True
        except OSError:  # a filesystem without locks, on which nothing can be trained
            return False

    @cached_property
    def _lock(self) -> FileLock:
        # one lock, by whatever name a link gives the folder
        folder = self.path.resolve()
        return FileLock(folder.parent / f".{folder.name}.lock", thread_local=False)

    def create(self, config: Config) -> None:
        """Create the folder and write the resolved configuration into it."""
        for path in (self.samples, self.snapshots, self.path / "checkpoints", self.metrics):
            if path.is_symlink():
                raise CheckpointError(f"{path} is a link; a run writes only below its own folder, set run.dir instead")
        if self.metrics.exists() and not self.metrics.is_file():  # a pipe would wait for a reader
            raise CheckpointError(f"{self.metrics} is not a regular file; remove it, or set run.dir to another folder")
        try:
            make_folder(self.samples)
            self._remove_unfinished()
            write_atomic(self.path / "config.yaml", dump_config(config).encode())
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"cannot write the run folder {self.path}: {error.strerror}; set run.dir to one to write and lock"
        )

    def config(self) -> Config | None:
        """Read the configuration the run was started with; None where there is no run yet."""
        file = self.path / "config.yaml"
        return parse_config(read_yaml(file), str(file)) if file.is_file() else None

    def checkpoints(self) -> list[Path]:
        """Return the checkpoint folders, newest first; one that was moved aside comes after its replacement."""
        return [folder for folder in self._step_folders() if (folder / MANIFEST).is_file()]

    def _step_folders(self) -> list[Path]:
        """Return the folders of `checkpoints`, and those without a manifest."""
        found = []
        for folder in (self.path / "checkpoints").glob("step-*"):
            match = _STEP.fullmatch(folder.name)
            if match and folder.is_dir():
                found.append((int(match[1]), match[2] is None, folder))
        return [folder for _, _, folder in sorted(found, reverse=True)]

    def save(self, checkpoint: Checkpoint, best: bool, keep_last: int) -> Path:
        """Write a checkpoint, point `last` (and `best`) to it, and remove old ones; return its folder.

        After a CheckpointError the existing ones are untouched.
        """
        # the folder was deleted during the run
        if not (self.path / "config.yaml").is_file():
            self.create(checkpoint.config)
        step = int(checkpoint.state["step"])
        folder = self.path / "checkpoints" / _folder_name(step)
        write_checkpoint(folder, checkpoint)
        verify_checkpoint(folder)
        for name in ("best", "last") if best else ("last",):
            self._point(name, checkpoint.state)
        self._remove_old(step, keep_last)
        return folder

    def has(self, folder: Path) -> bool:
        """Return whether the folder of a checkpoint is one of this run's."""
        return folder.resolve().parent == (self.path / "checkpoints").resolve()

    def continue_from(self, folder: Path, state: dict[str, Any]) -> None:
        """Point `last` to a checkpoint of this run to continue from, and drop samples and snapshots of later steps.

        After an earlier one was chosen by its path, a run that is killed before it saves continues from there.
        """
        if self.has(folder):
            # before anything is dropped: a run that is killed in between has to make that again
            self._point("last", state)
        try:
            for files in (self.samples, self.snapshots):
                for step, file in step_files(files).items():
                    if step > state["step"]:
                        file.unlink()
        except OSError as error:
            raise self._unwritable(error) from None

    def pointed(self, name: str) -> Path | None:
        """Return the checkpoint that `best` or `last` points to; None if there is none, or the pointer is damaged."""
        folder = self._named_by(name)
        return None if folder is None else _existing(folder)

    def _named_by(self, name: str) -> Path | None:
        """Return the folder that a pointer names, which may be gone; None if the pointer is missing or damaged."""
        try:
            pointer = parse_json(read_file(self.path / f"{name}.json", MAX_SMALL_JSON_BYTES))
            folder = self.path / "checkpoints" / _folder_name(pointer["step"])
            # a flipped bit changes one of them
            is_whole = pointer["checkpoint"] == f"checkpoints/{folder.name}"
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return folder if is_whole else None

    def damaged_pointer(self, name: str) -> str | None:
        """Return a message if `best` or `last` is there, but does not point to a checkpoint."""
        path = self.path / f"{name}.json"
        if self.pointed(name) is not None or not path.exists():
            return None
        return f"{path} is damaged, or the checkpoint it names is gone"

    def restore_best(self, step: int) -> bool:
        """Point `best` to the checkpoint of the best step, and return whether there is a best checkpoint.

        The pointer may be missing or damaged, or a process was killed before it wrote it. Where it points nowhere and
        that checkpoint is gone too, the pointer is removed: none is known any more.
        """
        folder = _existing(self.path / "checkpoints" / _folder_name(step)) if step >= 0 else None
        try:
            if folder is not None:
                self._point("best", read_state(folder))
            elif self.pointed("best") is None:
                (self.path / "best.json").unlink(missing_ok=True)
        except CheckpointError:  # that checkpoint is damaged
            pass
        except OSError as error:
            raise self._unwritable(error) from None
        return self.pointed("best") is not None

    def newest_valid(self) -> tuple[Path, Checkpoint, list[str]] | None:
        """Read the checkpoint that `last` points to, or else the newest readable one; None if there is none.

        Return its folder, its contents, and a message for each damaged one that was skipped. `last` comes first because
        a run that was resumed from an earlier step leaves later ones behind.
        """
        damaged = [message] if (message := self.damaged_pointer("last")) else []
        pointers, last = len(damaged), self.pointed("last")
        for folder in sorted(self._step_folders(), key=lambda folder: folder != last):
            try:
                return folder, read_checkpoint(folder), damaged
            except CheckpointError as error:
                damaged.append(str(error))
        if len(damaged) > pointers:
            raise CheckpointError(f"{self.path} has no readable checkpoint; the newest: {damaged[pointers]}")
        return None

    def _point(self, name: str, state: dict[str, Any]) -> None:
        folder = f"checkpoints/{_folder_name(state['step'])}"
        pointer = {"checkpoint": folder, "step": state["step"], "val_loss": state.get("val_loss")}
        try:
            write_atomic(self.path / f"{name}.json", f"{json.dumps(pointer)}\n".encode())
        except OSError as error:
            raise CheckpointError(f"cannot write {self.path / name}.json: {error.strerror}") from None

    def _remove_old(self, step: int, keep_last: int) -> None:
        """Keep the newest up to `step`; later ones are from before a resume at an earlier step.

        While a pointer cannot be read, all are kept: one of them may be the best.
        """
        self._remove_unfinished()
        if self._named_by("best") is None and (self.path / "best.json").exists():
            return
        keep = {self.pointed("best"), self.pointed("last")}
        ranked = sorted(self.checkpoints(), key=lambda folder: int(folder.name.split("-")[1].split(".")[0]) > step)
        for folder in ranked[keep_last:]:
            if folder not in keep:
                shutil.rmtree(folder, ignore_errors=True)

    def _remove_unfinished(self) -> None:
        """Remove what a killed process left; no other one writes here."""
        for parent in (self.path, self.path / "checkpoints", self.samples, self.snapshots):
            for folder in parent.glob(".*.tmp"):
                shutil.rmtree(folder, ignore_errors=True)


def step_files(folder: Path) -> dict[int, Path]:
    """Return the samples or snapshots in a folder, which may be missing, by their steps in order."""
    found = ((_STEP_FILE.fullmatch(path.name), path) for path in folder.glob("step-*"))
    return dict(sorted((int(match[1]), path) for match, path in found if match))


def _folder_name(step: int) -> str:
    return f"step-{step:06d}"


def _existing(folder: Path) -> Path | None:
    """Return the folder of a checkpoint; or that beside it, if a process was killed while it replaced the first."""
    aside = folder.with_name(f"{folder.name}.old")
    return next((found for found in (folder, aside) if found.is_dir()), None)


def run_around(folder: Path) -> RunFolder | None:
    """Return the run whose folder, or the folder of one of whose checkpoints, is given; None if it is neither."""
    if folder.name in ("", ".."):  # a run has a name
        folder = Path(os.path.abspath(folder))  # noqa: PTH100  # without .., which Path.absolute keeps
    places = [folder, folder.parent.parent] if folder.parent.name == "checkpoints" else [folder]
    return next((run for run in map(RunFolder, places) if run.has_checkpoints), None)


def find_checkpoint(path: Path | None, runs: Path, prefer: str = "best") -> Path:
    """Find the checkpoint folder that a user means.

    Args:
        path: a run folder, a checkpoint folder, or `best` or `last` in a run folder, by its path or by what that is in
            `runs`; None: the newest run in `runs`.
        prefer: `best` or `last`, for a run folder that has both.
    """
    if path is None:
        path = next(iter(_newest_first(runs)), None)
        if path is None:
            raise CheckpointError(
                f"no trained run below {runs}; train first: {command_line('train', '--config', 'quickstart')}"
            )
    if text := text_for_path(path):
        raise CheckpointError(f"{text}; give a run folder or a checkpoint folder")
    place = find_place(path, runs)
    if place is None:
        raise CheckpointError(f"{path}: no such run or checkpoint{similar_run(path, runs)}")
    path = place
    if (path / MANIFEST).is_file():
        return path
    is_pointer = not path.exists()
    run, name = (RunFolder(path.parent), path.name) if is_pointer else (RunFolder(path), prefer)
    if damaged := run.damaged_pointer(name):
        raise CheckpointError(f"{damaged}; give a folder in {run.path / 'checkpoints'} instead")
    found = run.pointed(name)
    if found is None and not is_pointer:
        found = run.pointed("last") or next(iter(run.checkpoints()), None)
    if found is None:
        raise CheckpointError(f"{path} holds no checkpoint; train first, or give another run")
    return found


def configuration_around(checkpoint: Path) -> Path:
    """Return the configuration of the run that has a checkpoint; CheckpointError: there is none."""
    run = run_around(checkpoint)
    if run is None or not (run.path / "config.yaml").is_file():
        raise CheckpointError(
            f"{checkpoint} is not of a run, whose configuration there would be; give a configuration too, by "
            "--config FILE (in Python config=FILE)"
        )
    return run.path / "config.yaml"


def name_of_model(checkpoint: Path, config: Config) -> str:
    """Return what to call the model of a checkpoint: as the folder of its run, which may be numbered, or renamed."""
    run = run_around(checkpoint)
    return (config.run.name or checkpoint.name) if run is None else run.path.absolute().name


def find_place(path: Path, runs: Path) -> Path | None:
    """Return the path of a run or a checkpoint, `best` and `last` included: as it is given, or in `runs`.

    A file in the folder of a run or a checkpoint means that folder. A folder of something else hides no run in `runs`.
    """
    places = [path, runs / path]
    for place in places:
        if holds_model(_folder_of(place)):
            return _folder_of(place) if place.is_file() else place
    return next((place for place in places if _folder_of(place).exists()), None)


def holds_model(folder: Path) -> bool:
    """Return whether a folder is a checkpoint, or that of a run which has saved one."""
    run = RunFolder(folder)
    # other programs write a manifest.json too
    return (folder / "config.yaml").is_file() and (run.is_checkpoint or run.has_checkpoints)


def _folder_of(place: Path) -> Path:
    """Return the folder of a file or of a pointer, whose own file is called otherwise; or the folder that is given."""
    is_pointer = place.name in ("best", "last") and not place.exists()
    return place.parent if is_pointer or place.is_file() else place


def similar_run(path: Path, runs: Path) -> str:
    """Return the end of a message about a path that is missing: a name that is spelled like it, or the newest runs."""
    if path.parts and (runs / path.parts[0]).is_dir():
        path = runs / path
    while not path.parent.exists():
        path = path.parent
    place = path.parent if path.parent != Path() else runs
    if near := nearest(path.name, [each.name for each in place.glob("*") if each.is_dir()]):
        return near
    names = [run.name for run in _newest_first(runs)[:SHOWN_RUNS]]
    return f"; {runs} has {', '.join(names)}" if names else ""


def _newest_first(runs: Path) -> list[Path]:
    """Return the folders of the runs in `runs` that have saved something, from the last one to the first."""
    pointers = [file for file in runs.glob("*/last.json") if file.is_file()]
    return [file.parent for file in sorted(pointers, key=lambda file: file.stat().st_mtime, reverse=True)]
