"""`/api/runs`: the runs of a folder, how far each is, what its model wrote and was at a step, also while it trains."""

import re
from functools import partial
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
"""Bytes from the end of a metrics.jsonl in which its last step is looked for."""
VIEW_SECONDS = 60.0
"""What a snapshot is waited for, whose embeddings are to be placed."""
MOST_STEPS = 2**62
Step = Annotated[int, InPath(ge=0, lt=MOST_STEPS)]
Basis = Annotated[int, Query(ge=0, lt=MOST_STEPS)]
_STEP = re.compile(rb'^\{"step": (\d{1,18}),.*\n', re.MULTILINE)


def add_runs(app: FastAPI, runs: Path, folders: Folders) -> None:
    """Add the endpoints; the folder may be missing."""

    async def check(name: str) -> None:
        """Raise APIError if there is no such run; nothing else that a path could say is looked for."""
        is_there = name in await folders.look("", _names_in, runs)
        if not is_there or not await folders.look(name, _is_run, runs / name):
            raise APIError(404, f"there is no run {quoted(name, 100)!r}; /api/runs lists them")

    async def list_runs() -> dict[str, Any]:
        """List the runs, those that changed last first, and name the one that a process trains now."""
        names = await folders.look("", _names_in, runs)
        found = await folders.look_into_each(names, partial(_state, runs))
        states = {name: state for name, state in found.items() if state is not None}
        names = sorted(states, key=lambda name: states[name].changed, reverse=True)
        training = next((name for name in names if states[name].is_being_trained), None)
        return {"runs": names, "training": training}

    async def get_run(name: str) -> dict[str, Any]:
        """Return how far a run is, its lowest validation loss, and the steps of its snapshots."""
        await check(name)
        return await folders.look(name, _describe, RunFolder(runs / name))

    async def get_snapshot(name: str, step: Step, basis: Basis) -> dict[str, Any]:
        """Return the snapshot of a step, with its embeddings in the plane of those of the step `basis`."""
        await check(name)
        return await folders.look(name, _view, RunFolder(runs / name), step, basis, seconds=VIEW_SECONDS)

    app.add_api_route("/api/runs", list_runs)
    app.add_api_route("/api/runs/{name}", get_run)
    app.add_api_route("/api/runs/{name}/snapshots/{step}", get_snapshot)


class _State(NamedTuple):
    """When a run last reported something, in seconds since 1970, and whether a process trains it now."""

    changed: float
    is_being_trained: bool


def _names_in(runs: Path) -> list[str]:
    return [path.name for path in runs.iterdir()] if runs.is_dir() else []


def _state(runs: Path, name: str) -> _State | None:
    """Return the state of a run, or None if this is none."""
    folder = runs / name
    return _State(_changed(folder), RunFolder(folder).is_being_trained()) if _is_run(folder) else None


def _describe(folder: RunFolder) -> dict[str, Any]:
    name = folder.path.name
    try:
        config, step = load_config(folder.path / "config.yaml").config, _last_step(folder.metrics)
    except (ConfigError, OSError) as error:
        raise APIError(500, f"the run {quoted(name, 100)!r} cannot be read: {first_line(error)}") from None
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


def _view(folder: RunFolder, step: int, basis: int) -> dict[str, Any]:
    try:
        return view_snapshot(step, _read_snapshot(folder, step), _read_snapshot(folder, basis))
    except InputError as error:
        raise APIError(400, str(error)) from None


def _is_run(folder: Path) -> bool:
    hidden = folder.name.startswith(".") or not folder.name.isprintable()
    if hidden or RunFolder(folder).is_checkpoint:  # quantized and imported models were not trained here
        return False
    return (folder / "config.yaml").is_file()


def _changed(folder: Path) -> float:
    """Return when a run last reported something."""
    file = folder / "metrics.jsonl"
    return (file if file.is_file() else folder / "config.yaml").stat().st_mtime


def _last_step(file: Path) -> int:
    """Return the step of the last complete line of a metrics.jsonl; 0: there is none."""
    if not file.is_file():
        return 0
    steps = _STEP.findall(read_end(file, TAIL_BYTES))
    return int(steps[-1]) if steps else 0


def _best(folder: RunFolder) -> tuple[int | None, float | None]:
    """Return the step and the validation loss of the best checkpoint; None where best.json has none."""
    try:
        pointer = parse_json(read_file(folder.path / "best.json", MAX_SMALL_JSON_BYTES))
        return int(pointer["step"]), float(pointer["val_loss"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None, None


def _read_snapshot(folder: RunFolder, step: int) -> Snapshot:
    file = folder.snapshot(step)
    if not file.is_file():
        raise APIError(404, f"the run {quoted(folder.path.name, 100)!r} has no snapshot of step {step}")
    try:
        return read_snapshot(file)
    except CheckpointError:
        name = quoted(folder.path.name, 100)
        raise APIError(500, f"the run {name!r} has a damaged snapshot of step {step}") from None
