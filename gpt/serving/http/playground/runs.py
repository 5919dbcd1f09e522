"""`/api/runs`: the runs of a folder, how far each is, and what its model wrote, also while it trains."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI

from gpt.checkpoint import RunFolder, step_files
from gpt.config.loading import load_config
from gpt.errors import ConfigError
from gpt.files import parse_json
from gpt.serving.http.protocol import APIError

MAX_SAMPLES = 200
SAMPLE_CHARACTERS = 10_000
TAIL_BYTES = 1 << 16
"""Bytes from the end of a metrics.jsonl in which its last step is looked for."""
_STEP = re.compile(rb'^\{"step": (\d{1,18}),.*\n', re.MULTILINE)


@dataclass(frozen=True)
class RunList:
    """The names of all runs, those that changed last first.

    Attributes:
        training: the one that a process trains now; None: there is none.
    """

    runs: list[str]
    training: str | None


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        name: name of its folder.
        training: a process trains it now.
        step: last step that was reported.
        max_steps: optimizer steps of the whole run.
        best_step: step of the checkpoint with the lowest validation loss; None: there is none yet.
        best_val_loss: its validation loss, in nats per token.
        tokenizer: `data.tokenizer`.
        samples: steps that have a sample.
        snapshots: steps that have a snapshot.
    """

    name: str
    training: bool
    step: int
    max_steps: int
    best_step: int | None
    best_val_loss: float | None
    tokenizer: str
    samples: Sequence[int]
    snapshots: Sequence[int]


@dataclass(frozen=True)
class Sample:
    """A text that the model wrote during training."""

    step: int
    text: str
    truncated: bool


class Runs:
    """Reads a folder of run folders, which may be missing; the methods block, so they are for threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def names(self) -> RunList:
        """List the runs."""
        found = [path for path in self.folder.iterdir() if _is_run(path)] if self.folder.is_dir() else []
        names = [path.name for path in sorted(found, key=_changed, reverse=True)]
        return RunList(names, next((name for name in names if RunFolder(self.folder / name).is_being_trained()), None))

    def get(self, name: str) -> RunFolder:
        """Return the folder of a run, or raise APIError: nothing else that a path could say is looked for."""
        names = {path.name for path in self.folder.iterdir()} if self.folder.is_dir() else set()
        if name not in names or not _is_run(self.folder / name):
            raise APIError(404, f"there is no run {name[:100]!r}; /api/runs lists them")
        return RunFolder(self.folder / name)

    def describe(self, name: str) -> Run:
        """Describe a run, see `get`."""
        folder = self.get(name)
        try:
            config, step = load_config(folder.path / "config.yaml").config, _last_step(folder.metrics)
        except (ConfigError, OSError) as error:
            raise APIError(500, f"the run {name!r} cannot be read: {str(error).partition(chr(10))[0]}") from None
        best_step, best_val_loss = _best(folder)
        return Run(
            name=name,
            training=folder.is_being_trained(),
            step=step,
            max_steps=config.train.max_steps,
            best_step=best_step,
            best_val_loss=best_val_loss,
            tokenizer=config.data.tokenizer,
            samples=_sample_steps(folder),
            snapshots=list(step_files(folder.snapshots)),
        )

    def sample(self, name: str, step: int) -> Sample:
        """Return the sample of a step; raise APIError if there is none."""
        file = self.get(name).samples / f"step-{step:06d}.txt"
        try:
            text = file.read_bytes()[: 4 * SAMPLE_CHARACTERS + 4].decode("utf-8", errors="replace")
        except OSError:
            raise APIError(404, f"the run {name!r} has no sample of step {step}") from None
        return Sample(step, text[:SAMPLE_CHARACTERS].removesuffix("\n"), len(text) > SAMPLE_CHARACTERS)


def _is_run(folder: Path) -> bool:
    hidden = folder.name.startswith(".") or not folder.name.isprintable()
    if hidden or RunFolder(folder).is_checkpoint:  # quantized and imported models were not trained here
        return False
    return (folder / "config.yaml").is_file()


def _changed(folder: Path) -> float:
    """Return when a run last reported something, in seconds since 1970."""
    for file in (folder / "metrics.jsonl", folder / "config.yaml"):
        if file.is_file():
            return file.stat().st_mtime
    return 0.0


def _last_step(file: Path) -> int:
    """Return the step of the last complete line of a metrics.jsonl; 0: there is none."""
    if not file.is_file():
        return 0
    with file.open("rb") as opened:
        opened.seek(max(0, opened.seek(0, os.SEEK_END) - TAIL_BYTES))
        steps = _STEP.findall(opened.read())
    return int(steps[-1]) if steps else 0


def _best(folder: RunFolder) -> tuple[int | None, float | None]:
    """Return the step and the validation loss of the best checkpoint; None where best.json has none."""
    try:
        pointer = parse_json((folder.path / "best.json").read_text(encoding="utf-8"))
        step, loss = int(pointer["step"]), pointer.get("val_loss")
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None, None
    return step, float(loss) if isinstance(loss, (int, float)) and abs(loss) < 1e300 else None


def _sample_steps(folder: RunFolder) -> list[int]:
    """Return the steps that have a sample, at most `MAX_SAMPLES` of them, the last one included."""
    steps = list(step_files(folder.samples))
    stride = -(-len(steps) // (MAX_SAMPLES - 1)) or 1
    return sorted({*steps[::stride], *steps[-1:]})  # from the first on, so that those listed stay as there come more


def add_runs(app: FastAPI, runs: Runs) -> None:
    def list_runs() -> RunList:
        """List the runs, those that changed last first."""
        return runs.names()

    def get_run(name: str) -> Run:
        """Return how far a run is, and the steps of its samples and snapshots."""
        return runs.describe(name)

    def get_sample(name: str, step: int) -> Sample:
        """Return what the model of a run wrote at a step."""
        return runs.sample(name, step)

    app.add_api_route("/api/runs", list_runs)
    app.add_api_route("/api/runs/{name}", get_run)
    app.add_api_route("/api/runs/{name}/samples/{step}", get_sample)
