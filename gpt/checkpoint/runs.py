"""The folder of a run, with its lock, its checkpoints and its pointers `best` and `last`.

The pointers are the files best.json and last.json, each of which names a checkpoint of the run.
"""

import json
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
from gpt.system.errors import CheckpointError
from gpt.system.files import (
    MAX_SMALL_JSON_BYTES,
    make_folder,
    parse_json,
    read_file,
    write_atomic,
)

_STEP_FOLDER = re.compile(r"step-(\d+)(\.old)?")
"""The name of a checkpoint's folder; `.old` marks a folder that was moved aside to be replaced."""
_STEP_FILE = re.compile(r"step-([0-9]{1,18})\.(txt|safetensors)")
"""The name of a sample or a snapshot; a step of 18 digits still fits in 64 bits."""
MAX_VOCABULARY = 512
"""The largest vocabulary whose embeddings are saved in a snapshot.

A map of more tokens would be unreadable, and their embeddings would take much space on the disk.
"""
PROBE_SECONDS = 0.5
"""How long `RunFolder.lock` retries.

It retries because `RunFolder.is_being_trained` in another process may hold the lock for an instant.
"""


class RunFolder:
    """The folder `runs/<name>`.

    It contains config.yaml, logs, samples/, snapshots/, checkpoints/, best.json and last.json.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = path / "metrics.jsonl"
        self.files = [self.metrics]  # the files to which a training appends
        self.samples = path / "samples"
        self.snapshots = path / "snapshots"

    def snapshot(self, step: int) -> Path:
        """Return the path of the snapshot of a step."""
        return self.snapshots / f"{_folder_name(step)}.safetensors"

    @property
    def is_checkpoint(self) -> bool:
        """Whether the folder itself is a checkpoint, such as `gpt quantize` writes."""
        return (self.path / MANIFEST).is_file()

    @property
    def has_checkpoints(self) -> bool:
        """Whether a training has saved here, even if all checkpoints are deleted or damaged now."""
        return (self.path / "last.json").is_file() or bool(self._step_folders())

    def lock(self) -> None:
        """Keep other processes from training this run until `unlock` or the end of this process."""
        try:
            # The lock is a file beside the run's folder, since that folder may not exist yet.
            make_folder(Path(self._lock.lock_file).parent)
            # A process that only asks `is_being_trained` may hold the lock for an instant, so that
            # `acquire` retries for a while.
            self._lock.acquire(timeout=PROBE_SECONDS)
        except Timeout:
            raise CheckpointError(
                f"another process is training {self.path}; "
                "wait for it, or choose another name with run.name=NAME"
            ) from None
        except OSError as error:
            raise self._unwritable(error) from None

    def unlock(self) -> None:
        """Let other processes train this run; do nothing if this process has not locked it."""
        if self._lock.is_locked:
            file = Path(self._lock.lock_file)
            with suppress(OSError):
                # The file is removed while this process still holds the lock. After the release,
                # another process might have locked the same file. A process that is waiting for the
                # lock finds the file gone, and makes a new one.
                file.unlink()
            self._lock.release()
            with suppress(OSError):
                # `lock` may have made the folder of all runs. `rmdir` removes it only if it is
                # empty, since this run has written nothing.
                file.parent.rmdir()

    def is_being_trained(self) -> bool:
        """Return whether this process or another one holds the lock."""
        if self._lock.is_locked:
            return True
        # Without the file nobody holds the lock. To acquire it below would make a new file.
        if not Path(self._lock.lock_file).is_file():
            return False
        try:
            # If the lock can be acquired, no other process holds it. `with` releases it again.
            with self._lock.acquire(timeout=0):
                return False
        except Timeout:
            return True
        except OSError:
            # This file system has no locks. No run can be trained on it, since `lock` fails too.
            return False

    @cached_property
    def _lock(self) -> FileLock:
        # The path is resolved, so that a folder that is reached through a link has the same lock.
        # The lock is not local to a thread, so that any thread of this process may release it.
        folder = self.path.resolve()
        return FileLock(folder.parent / f".{folder.name}.lock", thread_local=False)

    def create(self, config: Config) -> None:
        """Create the folder and write the resolved configuration into it."""
        # A training removes old checkpoints and samples. If one of these folders were a link, other
        # files of the user would be removed or overwritten.
        for path in (self.samples, self.snapshots, self.path / "checkpoints", *self.files):
            if path.is_symlink():
                raise CheckpointError(
                    f"{path} is a link; a run writes only below its own folder, set run.dir instead"
                )
        for file in self.files:
            # A named pipe, for example, would make the training wait until somebody reads it.
            if file.exists() and not file.is_file():
                raise CheckpointError(
                    f"{file} is not a regular file; remove it, or set run.dir to another folder"
                )
        try:
            make_folder(self.samples)  # and the run's folder around it
            self._remove_unfinished()
            write_atomic(self.path / "config.yaml", dump_config(config).encode())
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> CheckpointError:
        """Return an error for the user that says that the run's folder cannot be written."""
        return CheckpointError(
            f"cannot write the run folder {self.path}: {error.strerror}; "
            "set run.dir to one to write and lock"
        )

    def config(self) -> Config | None:
        """Read the configuration that the run was started with; None if there is no run yet."""
        file = self.path / "config.yaml"
        if not file.is_file():
            return None
        return parse_config(read_yaml(file), str(file))

    def checkpoints(self) -> list[Path]:
        """Return the folders of the checkpoints, newest first.

        A folder that was moved aside comes after its replacement.
        """
        return [folder for folder in self._step_folders() if (folder / MANIFEST).is_file()]

    def _step_folders(self) -> list[Path]:
        """Return the folders with names of checkpoints, newest first, even without a manifest."""
        found = []
        for folder in (self.path / "checkpoints").glob("step-*"):
            match = _STEP_FOLDER.fullmatch(folder.name)
            if match and folder.is_dir():
                is_replacement = match[2] is None  # the name does not end in `.old`
                found.append((int(match[1]), is_replacement, folder))
        # The newest step comes first. If a step has two folders, the replacement comes before the
        # one that was moved aside, since True is greater than False.
        found.sort(reverse=True)
        return [folder for _, _, folder in found]

    def save(self, checkpoint: Checkpoint, best: bool, keep_last: int) -> Path:
        """Write a checkpoint, point last.json to it, and remove old ones.

        After a CheckpointError the existing checkpoints are untouched.

        Args:
            best: whether best.json points to the new checkpoint too.
            keep_last: how many of the newest checkpoints are kept, besides the best one.

        Returns:
            The folder of the new checkpoint.
        """
        if not (self.path / "config.yaml").is_file():
            # The user has deleted the folder during the run. The training is not lost: it goes on
            # in a new folder.
            self.create(checkpoint.config)
        step = int(checkpoint.state["step"])
        folder = self.path / "checkpoints" / _folder_name(step)
        write_checkpoint(folder, checkpoint)
        # The new checkpoint is read back from the disk before older ones are removed.
        verify_checkpoint(folder)
        if best:
            self._point("best", checkpoint.state)
        self._point("last", checkpoint.state)
        # Old checkpoints are removed last: a crash before leaves too many of them, and not too few.
        self._remove_old(step, keep_last)
        return folder

    def has(self, folder: Path) -> bool:
        """Return whether a checkpoint's folder lies in this run."""
        return folder.resolve().parent == (self.path / "checkpoints").resolve()

    def continue_from(self, folder: Path, state: dict[str, Any]) -> None:
        """Point last.json to a checkpoint to continue from; remove later samples and snapshots.

        The user may have chosen an earlier checkpoint by its path. If the training is killed before
        it saves again, the next one has to continue from that checkpoint too. If the checkpoint
        belongs to another run, last.json stays as it is.

        Args:
            folder: the checkpoint's folder, in this run or in another one.
            state: the checkpoint's progress, with its `step`.
        """
        if self.has(folder):
            # The pointer is set before the files are removed. If the process is killed in between,
            # the next training continues from this checkpoint, and writes the files anew.
            self._point("last", state)
        # Later samples and snapshots belong to steps that the training is going to repeat.
        try:
            for parent in (self.samples, self.snapshots):
                for step, file in step_files(parent).items():
                    if step > state["step"]:
                        file.unlink()
        except OSError as error:
            raise self._unwritable(error) from None

    def pointed(self, name: str) -> Path | None:
        """Return the checkpoint that `best` or `last` points to.

        Return None if there is no such checkpoint, or if the pointer is missing or damaged.
        """
        folder = self._named_by(name)
        return None if folder is None else _existing(folder)

    def _named_by(self, name: str) -> Path | None:
        """Return the folder that a pointer names, even if that folder is gone.

        Return None if the pointer is missing or damaged.
        """
        try:
            pointer = parse_json(read_file(self.path / f"{name}.json", MAX_SMALL_JSON_BYTES))
            folder = self.path / "checkpoints" / _folder_name(pointer["step"])
            # The pointer has its step twice, as a number and in the name of the folder. If they
            # differ, the file is damaged.
            is_consistent = pointer["checkpoint"] == f"checkpoints/{folder.name}"
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return folder if is_consistent else None

    def damaged_pointer(self, name: str) -> str | None:
        """Return a message if the pointer `best` or `last` exists but leads to no checkpoint."""
        path = self.path / f"{name}.json"
        if self.pointed(name) is not None or not path.exists():
            return None
        return f"{path} is damaged, or the checkpoint it names is gone"

    def restore_best(self, step: int) -> bool:
        """Point `best` to the checkpoint of the best step.

        The pointer may be missing or damaged, or of an earlier checkpoint because a process was
        killed before it wrote the pointer. If the pointer leads nowhere and the checkpoint of the
        best step is gone too, the pointer is removed, since no best checkpoint is known any more.

        Args:
            step: the step with the lowest validation loss; negative if there was no validation yet.

        Returns:
            Whether `best` leads to a checkpoint now.

        Raises:
            CheckpointError: the pointer cannot be written or removed.
        """
        folder = None
        if step >= 0:
            folder = _existing(self.path / "checkpoints" / _folder_name(step))
        if folder is not None:
            try:
                # The pointer also has the validation loss, which is in the checkpoint's state.
                state = read_state(folder)
            except CheckpointError:
                # The checkpoint of the best step is damaged. The pointer stays as it is, since it
                # may lead to another checkpoint that can be read.
                pass
            else:
                self._point("best", state)
        elif self.pointed("best") is None:
            try:
                (self.path / "best.json").unlink(missing_ok=True)
            except OSError as error:
                raise self._unwritable(error) from None
        return self.pointed("best") is not None

    def newest_valid(self) -> tuple[Path, Checkpoint, list[str]] | None:
        """Read the checkpoint that `last` points to, or else the newest readable one.

        `last` comes first because a run that was resumed from an earlier step leaves later
        checkpoints behind.

        Returns:
            The checkpoint's folder, its contents, and a message for the pointer and for each
            checkpoint that was skipped as damaged; None if the run has no checkpoint.

        Raises:
            CheckpointError: the run has checkpoints, but none can be read.
        """
        messages: list[str] = []
        damaged_pointer = self.damaged_pointer("last")
        if damaged_pointer is not None:
            messages.append(damaged_pointer)
        last = self.pointed("last")
        # The folders are sorted already, the newest first. Sorting is stable and False is less than
        # True, so that `last` moves to the front and the others keep their order. Folders without a
        # manifest are tried too, so that the user is told that they cannot be read.
        folders = sorted(self._step_folders(), key=lambda folder: folder != last)
        failures: list[str] = []
        for folder in folders:
            try:
                return folder, read_checkpoint(folder), messages + failures
            except CheckpointError as error:
                failures.append(str(error))
        if failures:
            raise CheckpointError(
                f"{self.path} has no readable checkpoint; the newest: {failures[0]}"
            )
        return None

    def _point(self, name: str, state: dict[str, Any]) -> None:
        """Replace the pointer `best` or `last`, so that it names the checkpoint of a state."""
        folder = f"checkpoints/{_folder_name(state['step'])}"
        pointer = {"checkpoint": folder, "step": state["step"], "val_loss": state.get("val_loss")}
        try:
            write_atomic(self.path / f"{name}.json", f"{json.dumps(pointer)}\n".encode())
        except OSError as error:
            raise CheckpointError(
                f"cannot write {self.path / name}.json: {error.strerror}"
            ) from None

    def _remove_old(self, step: int, keep_last: int) -> None:
        """Remove all but the newest `keep_last` checkpoints and those that a pointer names.

        Checkpoints of steps after `step`, the present one, were saved before the run was resumed at
        an earlier step. So they count as older than all others. While best.json cannot be read,
        nothing is removed, since any of the checkpoints may be the best.
        """
        self._remove_unfinished()
        is_best_unreadable = self._named_by("best") is None and (self.path / "best.json").exists()
        if is_best_unreadable:
            return
        pointed = {self.pointed("best"), self.pointed("last")}
        # Sorting is stable and False is less than True: the checkpoints up to `step` come first,
        # with the newest at the front, and then those after `step`.
        ranked = sorted(self.checkpoints(), key=lambda folder: _step_of(folder) > step)
        for folder in ranked[keep_last:]:
            if folder not in pointed:
                shutil.rmtree(folder, ignore_errors=True)

    def _remove_unfinished(self) -> None:
        """Remove temporary folders that a killed process has left.

        None of them is in use, since only the process that holds the lock writes here.
        """
        for parent in (self.path, self.path / "checkpoints", self.samples, self.snapshots):
            for folder in parent.glob(".*.tmp"):
                shutil.rmtree(folder, ignore_errors=True)


def step_files(folder: Path) -> dict[int, Path]:
    """Return the samples or snapshots in a folder by their steps, in order of the steps.

    The result is empty if the folder does not exist.
    """
    found: list[tuple[int, Path]] = []
    for path in folder.glob("step-*"):
        match = _STEP_FILE.fullmatch(path.name)
        if match:
            found.append((int(match[1]), path))
    return dict(sorted(found))


def _folder_name(step: int) -> str:
    return f"step-{step:06d}"


def _step_of(folder: Path) -> int:
    """Return the step of a checkpoint, from the name of its folder."""
    match = _STEP_FOLDER.fullmatch(folder.name)
    assert match is not None, folder
    return int(match[1])


def _existing(folder: Path) -> Path | None:
    """Return a checkpoint's folder, or else the one that was moved aside, or else None.

    `write_checkpoint` moves an existing folder aside before it renames the new one. A process that
    is killed in between leaves only the folder that was moved aside.
    """
    if folder.is_dir():
        return folder
    aside = folder.with_name(f"{folder.name}.old")
    return aside if aside.is_dir() else None
