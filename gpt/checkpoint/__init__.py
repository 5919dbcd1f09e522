"""Checkpoints and run folders: a crash loses no saved file, and whatever is read is verified."""

from gpt.checkpoint.finding import (
    RUNS,
    configuration_around,
    find_checkpoint,
    find_place,
    find_run,
    holds_model,
    name_of_model,
    run_around,
    similar_run,
)
from gpt.checkpoint.folder import (
    Checkpoint,
    read_checkpoint,
    read_description,
    read_state,
    write_checkpoint,
)
from gpt.checkpoint.loading import (
    Loaded,
    bare_checkpoint,
    build_model,
    load_trained,
    load_weights,
    weights_of,
)
from gpt.checkpoint.manifest import verify_checkpoint
from gpt.checkpoint.runs import RunFolder, step_files

__all__ = [
    "RUNS",
    "Checkpoint",
    "Loaded",
    "RunFolder",
    "bare_checkpoint",
    "build_model",
    "configuration_around",
    "find_checkpoint",
    "find_place",
    "find_run",
    "holds_model",
    "load_trained",
    "load_weights",
    "name_of_model",
    "read_checkpoint",
    "read_description",
    "read_state",
    "run_around",
    "similar_run",
    "step_files",
    "verify_checkpoint",
    "weights_of",
    "write_checkpoint",
]
