"""`/api/runs`: the runs of a folder, how far each has come, and the snapshots of its model, also
while it trains.
"""

import re
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from fastapi import FastAPI, Query
from fastapi import Path as InPath

from gpt.checkpoint import RunFolder, step_files
from gpt.config.sources import load_config
from gpt.extras.inspection.views.snapshots import Snapshot, read_snapshot, view_snapshot
from gpt.extras.serving.http.folders import Folders
from gpt.extras.serving.http.protocol import APIError
from gpt.system.errors import CheckpointError, ConfigError, InputError, first_line, quoted
from gpt.system.files import MAX_SMALL_JSON_BYTES, parse_json, read_end, read_file

TAIL_BYTES = 1 << 16
"""Bytes from the end of a metrics.jsonl in which its last step is looked for: hundreds of lines."""
SNAPSHOT_SECONDS = 60.0
"""How long a snapshot is waited for. Its embeddings have to be projected to a plane."""
MAX_TEXTS = 64
"""Most snapshots whose texts are read: twice as many as a run has that was never interrupted."""
MAX_STEP = 2**62
"""Steps are below this, so that they fit 64 bits."""
Step = Annotated[int, InPath(ge=0, lt=MAX_STEP)]
Basis = Annotated[int, Query(ge=0, lt=MAX_STEP)]
_METRICS_LINE = re.compile(rb'^\{"step": (\d{1,18}),.*\n', re.MULTILINE)
"""A complete line of a metrics.jsonl: the last one may be being written."""


def add_runs(app: FastAPI, runs: Path, folders: Folders) -> None:
    """Add the endpoints; the folder `runs` may be missing."""

    async def check(name: str) -> None:
        """Raise APIError unless there is such a run.

        Only names in the folder count, so that a path finds nothing.
        """
        is_there = name in await folders.look("", _names_in, runs)  # "" is the folder of runs
        if not is_there or not await folders.look(name, _is_run, runs / name):
            raise APIError(404, f"there is no run {quoted(name, 100)!r}; /api/runs lists them")

    async def list_runs() -> dict[str, Any]:
        """List the runs, the last changed first, and name the one that a process trains now."""
        folder_names = await folders.look("", _names_in, runs)
        found = await folders.look_into_each(folder_names, partial(_state, runs))
        states = {name: state for name, state in found.items() if state is not None}
        names = sorted(states, key=lambda name: states[name].changed, reverse=True)
        # of several, the one that was changed last
        training = next((name for name in names if states[name].is_being_trained), None)
        return {"runs": names, "training": training}

    async def get_run(name: str) -> dict[str, Any]:
        """Return how far a run has come, its lowest validation loss, and the steps of its
        snapshots.
        """
        await check(name)
        return await folders.look(name, _describe, RunFolder(runs / name))

    async def get_snapshot(name: str, step: Step, basis: Basis) -> dict[str, Any]:
        """Return the snapshot of a step, its embeddings projected to the plane of those at the step
        `basis`.
        """
        await check(name)
        folder = RunFolder(runs / name)
        return await folders.look(name, _view, folder, step, basis, seconds=SNAPSHOT_SECONDS)

    async def get_texts(name: str) -> dict[str, Any]:
        """Return the texts of a run's snapshots, in the order of their steps."""
        await check(name)
        texts = await folders.look(name, _texts, RunFolder(runs / name), seconds=SNAPSHOT_SECONDS)
        return {"texts": texts}

    app.add_api_route("/api/runs", list_runs)
    app.add_api_route("/api/runs/{name}/texts", get_texts)
    app.add_api_route("/api/runs/{name}", get_run)
    app.add_api_route("/api/runs/{name}/snapshots/{step}", get_snapshot)


class _State(NamedTuple):
    """When a run last reported something, in seconds since 1970, and whether a process trains it
    now.
    """

    changed: float
    is_being_trained: bool


def _names_in(runs: Path) -> list[str]:
    """Return the names of all that is in the folder of runs, which may be missing."""
    if not runs.is_dir():
        return []
    return [path.name for path in runs.iterdir()]


def _state(runs: Path, name: str) -> _State | None:
    """Return the state of a run, or None if the folder is no run."""
    folder = runs / name
    if not _is_run(folder):
        return None
    return _State(_changed(folder), RunFolder(folder).is_being_trained())


def _describe(folder: RunFolder) -> dict[str, Any]:
    """Return what the page shows of a run."""
    name = folder.path.name
    try:
        config = load_config(folder.path / "config.yaml").config
        step = _last_step(folder.metrics)
    except (ConfigError, OSError) as error:
        reason = f"the run {quoted(name, 100)!r} cannot be read: {first_line(error)}"
        raise APIError(500, reason) from None
    best_step, best_val_loss = _best(folder)
    return {
        "name": name,
        "training": folder.is_being_trained(),
        "step": step,
        "max_steps": config.train.max_steps,
        "best_step": best_step,
        "best_val_loss": best_val_loss,
        "tokenizer": config.data.tokenizer,
        "snapshots": list(step_files(folder.snapshots)),
    }


def _texts(folder: RunFolder) -> list[dict[str, Any]]:
    """Return `step`, `prompt` and `sample` of each snapshot that has a text."""
    texts: list[dict[str, Any]] = []
    for step, file in islice(step_files(folder.snapshots).items(), MAX_TEXTS):
        try:
            snapshot = read_snapshot(file)
        except CheckpointError:
            continue
        if snapshot.sample:
            texts.append({"step": step, "prompt": snapshot.prompt, "sample": snapshot.sample})
    return texts


def _view(folder: RunFolder, step: int, basis: int) -> dict[str, Any]:
    """Return the snapshot of a step for the page; see `get_snapshot`."""
    snapshot = _read_snapshot(folder, step)
    basis_snapshot = _read_snapshot(folder, basis)
    try:
        return view_snapshot(step, snapshot, basis_snapshot)
    except InputError as error:
        raise APIError(400, str(error)) from None


def _is_run(folder: Path) -> bool:
    """Return whether a folder is a run that was trained here, as quantized and imported models were
    not.
    """
    is_hidden = folder.name.startswith(".") or not folder.name.isprintable()
    if is_hidden or RunFolder(folder).is_checkpoint:
        return False
    return (folder / "config.yaml").is_file()


def _changed(folder: Path) -> float:
    """Return when a run last reported something, in seconds since 1970."""
    file = folder / "metrics.jsonl"
    if not file.is_file():  # nothing was reported yet
        file = folder / "config.yaml"
    return file.stat().st_mtime


def _last_step(file: Path) -> int:
    """Return the step of the last complete line of a metrics.jsonl; 0 if there is none."""
    if not file.is_file():
        return 0
    steps = _METRICS_LINE.findall(read_end(file, TAIL_BYTES))
    return int(steps[-1]) if steps else 0


def _best(folder: RunFolder) -> tuple[int | None, float | None]:
    """Return the step and the validation loss of the best checkpoint, or two None.

    There may be no best.json yet, or one that another program wrote.
    """
    try:
        pointer = parse_json(read_file(folder.path / "best.json", MAX_SMALL_JSON_BYTES))
        return int(pointer["step"]), float(pointer["val_loss"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None, None


def _read_snapshot(folder: RunFolder, step: int) -> Snapshot:
    """Return the snapshot of a step; raise APIError if there is none or it is damaged."""
    name = quoted(folder.path.name, 100)
    file = folder.snapshot(step)
    if not file.is_file():
        raise APIError(404, f"the run {name!r} has no snapshot of step {step}")
    try:
        return read_snapshot(file)
    except CheckpointError:
        raise APIError(500, f"the run {name!r} has a damaged snapshot of step {step}") from None
