"""`/api/runs`: the runs of a folder, their curves and their samples, also while they train."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query

from gpt.accounting.parameters import count_parameters
from gpt.checkpoint import RunFolder, step_files
from gpt.config import Config, ModelConfig
from gpt.config.loading import load_config
from gpt.errors import ConfigError
from gpt.files import parse_json
from gpt.serving.http.playground.curves import Columns, last_progress, read_curves
from gpt.serving.http.protocol import APIError

MAX_SAMPLES = 200
SAMPLE_CHARACTERS = 10_000
SHOWN = (
    *("data.source", "data.tokenizer", "model.n_layer", "model.n_head", "model.n_embd", "model.block_size"),
    *("model.position", "model.mlp", "optim.name", "optim.learning_rate", "train.batch_size"),
    *("train.grad_accum_steps", "train.max_steps"),
)
"""Keys of the configuration that are shown; paths on this machine are not among them."""


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        name: name of its folder.
        training: a process trains it now.
        step: optimizer steps done.
        max_steps: optimizer steps of the whole run.
        seconds: seconds of training until `step`, evaluations included; None: not known yet.
        seconds_left: at the pace of the run so far; None where it does not train.
        best_step: step of the checkpoint with the lowest validation loss; None: there is none yet.
        best_val_loss: its validation loss, in nats per token.
        parameters: number of the model's parameters; None while the vocabulary is not known.
        has_checkpoint: it can be loaded as a model.
        config: some keys of its configuration.
        problem: why it cannot be read, in which case the rest is empty; None: it can.
    """

    name: str
    training: bool = False
    step: int = 0
    max_steps: int | None = None
    seconds: float | None = None
    seconds_left: float | None = None
    best_step: int | None = None
    best_val_loss: float | None = None
    parameters: int | None = None
    has_checkpoint: bool = False
    config: dict[str, str | int | float | bool | None] | None = None
    problem: str | None = None


@dataclass(frozen=True)
class RunList:
    """All runs, those that changed last first."""

    runs: list[Run]


@dataclass(frozen=True)
class RunDetails(Run):
    """One run with its curves, see `Curves`, and the steps of its samples and snapshots."""

    training_curve: Columns | None = None
    validation_curve: Columns | None = None
    every: int = 1
    last_step: int | None = None
    samples: Sequence[int] = ()
    snapshots: Sequence[int] = ()


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

    def names(self) -> list[str]:
        """Return the names of the runs, those that changed last first."""
        if not self.folder.is_dir():
            return []
        found = [path for path in self.folder.iterdir() if _is_run(path)]
        return [path.name for path in sorted(found, key=_changed, reverse=True)]

    def get(self, name: str) -> RunFolder:
        """Return the folder of a run, or raise APIError: nothing else that a path could say is looked for."""
        names = {path.name for path in self.folder.iterdir()} if self.folder.is_dir() else set()
        if name not in names or not _is_run(self.folder / name):
            raise APIError(404, f"there is no run {name[:100]!r}; /api/runs lists them")
        return RunFolder(self.folder / name)

    def summary(self, name: str) -> Run:
        """Describe a run, see `get`."""
        folder = self.get(name)
        try:
            config, progress = read_config(folder), last_progress(folder.metrics)
        except (ConfigError, OSError) as error:
            return Run(name, problem=str(error).partition("\n")[0])
        training = folder.is_being_trained()
        step, seconds = progress or (0, None)
        last, best = _pointer(folder, "last"), _pointer(folder, "best")
        leaves = config.leaves()
        left = seconds / step * (config.train.max_steps - step) if training and seconds is not None and step else None
        return Run(
            name=name,
            training=training,
            step=max(step, int(last.get("step", 0))),
            max_steps=config.train.max_steps,
            seconds=seconds,
            seconds_left=left,
            best_step=best.get("step"),
            best_val_loss=best.get("val_loss"),
            parameters=_parameters(config.model),
            has_checkpoint=folder.pointed("last") is not None,
            config={key: leaves[key] for key in SHOWN},
        )

    def details(self, name: str, after: int = -1) -> RunDetails:
        """Describe a run with its curves, of which only the points after the step `after` are returned."""
        summary, folder = self.summary(name), self.get(name)
        try:
            curves = read_curves(folder.metrics, after)
        except OSError as error:
            raise APIError(500, f"the metrics of {name!r} cannot be read: {error.strerror}") from None
        return RunDetails(
            **asdict(summary),
            training_curve=curves.training,
            validation_curve=curves.validation,
            every=curves.every,
            last_step=curves.last_step,
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


def read_config(folder: RunFolder) -> Config:
    """Return the configuration of a run, or raise ConfigError or OSError; while the file stays, it is read once."""
    file = folder.path / "config.yaml"
    status = file.stat()
    return _read_config(file, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=1024)
def _read_config(file: Path, changed: int, size: int) -> Config:
    return load_config(file).config


def _is_run(folder: Path) -> bool:
    hidden = folder.name.startswith(".") or not folder.name.isprintable()
    if hidden or RunFolder(folder).is_checkpoint:  # quantized and imported models have no curves
        return False
    return (folder / "config.yaml").is_file()


def _changed(folder: Path) -> float:
    """Return when a run last reported something, in seconds since 1970."""
    for file in (folder / "metrics.jsonl", folder / "config.yaml"):
        if file.is_file():
            return file.stat().st_mtime
    return 0.0


def _pointer(folder: RunFolder, name: str) -> dict[str, Any]:
    """Return the contents of best.json or last.json; nothing where there is none."""
    try:
        pointer = parse_json((folder.path / f"{name}.json").read_text(encoding="utf-8"))
        return {"step": int(pointer["step"]), "val_loss": _number(pointer.get("val_loss"))}
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return {}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1e300 else None


@lru_cache(maxsize=256)
def _parameters(model: ModelConfig) -> int | None:
    return None if model.vocab_size is None else count_parameters(model).total


def _sample_steps(folder: RunFolder) -> list[int]:
    """Return the steps that have a sample, at most `MAX_SAMPLES` of them, the last one included."""
    steps = list(step_files(folder.samples))
    stride = -(-len(steps) // (MAX_SAMPLES - 1)) or 1
    return sorted({*steps[::stride], *steps[-1:]})  # from the first on, so that those listed stay as there come more


def add_runs(app: FastAPI, runs: Runs) -> None:
    def list_runs() -> RunList:
        """List the runs, those that changed last first."""
        return RunList([runs.summary(name) for name in runs.names()])

    def get_run(name: str, after: Annotated[int, Query(ge=-1, lt=2**62)] = -1) -> RunDetails:
        """Return one run with its curves, of steps after `after`, thinned to about 1,000 points each."""
        return runs.details(name, after)

    def get_sample(name: str, step: int) -> Sample:
        """Return what the model of a run wrote at a step."""
        return runs.sample(name, step)

    app.add_api_route("/api/runs", list_runs)
    app.add_api_route("/api/runs/{name}", get_run)
    app.add_api_route("/api/runs/{name}/samples/{step}", get_sample)
