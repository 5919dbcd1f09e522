"""`/api/runs`: the runs of a folder, how far each is, what its model wrote and was at a step, also while it trains."""

import re
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query
from fastapi import Path as InPath

from gpt.checkpoint import RunFolder, step_files
from gpt.config.sources import load_config
from gpt.extras.inspection.views.snapshots import Snapshot, read_snapshot, view_snapshot
from gpt.extras.serving.http.protocol import APIError
from gpt.system.errors import CheckpointError, ConfigError, InputError
from gpt.system.files import MAX_SMALL_JSON_BYTES, parse_json, read_end, read_file

TAIL_BYTES = 1 << 16
"""Bytes from the end of a metrics.jsonl in which its last step is looked for."""
MOST_STEPS = 2**62
Step = Annotated[int, InPath(ge=0, lt=MOST_STEPS)]
Basis = Annotated[int, Query(ge=0, lt=MOST_STEPS)]
_STEP = re.compile(rb'^\{"step": (\d{1,18}),.*\n', re.MULTILINE)


def add_runs(app: FastAPI, runs: Path) -> None:
    """Add the endpoints; the folder may be missing. They block, so that each runs in a thread."""

    def get(name: str) -> RunFolder:
        """Return the folder of a run; nothing else that a path could say is looked for."""
        names = {path.name for path in runs.iterdir()} if runs.is_dir() else set()
        if name not in names or not _is_run(runs / name):
            raise APIError(404, f"there is no run {name[:100]!r}; /api/runs lists them")
        return RunFolder(runs / name)

    def list_runs() -> dict[str, Any]:
        """List the runs, those that changed last first, and name the one that a process trains now."""
        found = [path for path in runs.iterdir() if _is_run(path)] if runs.is_dir() else []
        names = [path.name for path in sorted(found, key=_changed, reverse=True)]
        training = next((name for name in names if RunFolder(runs / name).is_being_trained()), None)
        return {"runs": names, "training": training}

    def get_run(name: str) -> dict[str, Any]:
        """Return how far a run is, its lowest validation loss, and the steps of its snapshots."""
        folder = get(name)
        try:
            config, step = load_config(folder.path / "config.yaml").config, _last_step(folder.metrics)
        except (ConfigError, OSError) as error:
            raise APIError(500, f"the run {name!r} cannot be read: {str(error).partition(chr(10))[0]}") from None
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

    def get_snapshot(name: str, step: Step, basis: Basis) -> dict[str, Any]:
        """Return the snapshot of a step, with its embeddings in the plane of those of the step `basis`."""
        folder = get(name)
        try:
            return view_snapshot(step, _read_snapshot(folder, step), _read_snapshot(folder, basis))
        except InputError as error:
            raise APIError(400, str(error)) from None

    app.add_api_route("/api/runs", list_runs)
    app.add_api_route("/api/runs/{name}", get_run)
    app.add_api_route("/api/runs/{name}/snapshots/{step}", get_snapshot)


def _is_run(folder: Path) -> bool:
    hidden = folder.name.startswith(".") or not folder.name.isprintable()
    if hidden or RunFolder(folder).is_checkpoint:  # quantized and imported models were not trained here
        return False
    return (folder / "config.yaml").is_file()


def _changed(folder: Path) -> float:
    """Return when a run last reported something, in seconds since 1970."""
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
        raise APIError(404, f"the run {folder.path.name!r} has no snapshot of step {step}")
    try:
        return read_snapshot(file)
    except CheckpointError:
        raise APIError(500, f"the run {folder.path.name!r} has a damaged snapshot of step {step}") from None
