"""Summaries of the runs in a folder, and how they differ."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from gpt.api.metrics import read_metrics
from gpt.checkpoint import RunFolder, read_state, similar_run
from gpt.config import Config, DataConfig
from gpt.system.errors import CheckpointError, GPTError, explained, first_line
from gpt.system.files import MAX_JSON_BYTES, open_file, parse_json

Status = Literal["finished", "training", "stopped", "unreadable"]
OWN_KEYS = frozenset({"run.name", "run.dir", "run.seed", "model.vocab_size"})
"""Keys that differ between the seeds of one experiment; the vocabulary follows from the text."""


@dataclass(frozen=True)
class RunSummary:
    """What a run is, and how far it has come.

    Attributes:
        text: the named corpus, or the paths of the texts.
        parameters: None before the first checkpoint.
        best_loss: lowest validation loss, in nats per token; None before the first evaluation.
        bits_per_char: at the same step.
        date: of the last checkpoint, or of the configuration where there is none.
        problem: why the run cannot be read, in one line; empty otherwise.
    """

    name: str
    text: str
    parameters: int | None
    step: int
    max_steps: int
    best_loss: float | None
    bits_per_char: float | None
    date: datetime
    status: Status
    config: Config | None
    problem: str = ""


def summarize_runs(runs: Path, names: Sequence[str] = ()) -> list[RunSummary]:
    """Return the runs below a folder, or those with some names, from the newest to the oldest.

    Raises:
        CheckpointError: the folder is missing, or has no run of a given name.
    """
    if not runs.is_dir():
        raise CheckpointError(
            f"there is no folder {runs}; train first, or give another with --runs"
        )
    folders = [file.parent for file in runs.glob("*/config.yaml")]
    known = {folder.name: folder for folder in folders}
    for name in names:
        if name not in known:
            raise CheckpointError(f"{runs / name}: no such run{similar_run(Path(name), runs)}")
    chosen = [known[name] for name in names or known]
    summaries = [summarize(folder) for folder in chosen]
    return sorted(summaries, key=lambda summary: summary.date, reverse=True)


def summarize(folder: Path) -> RunSummary:
    """Return what the files of a run say; a damaged run is `unreadable`, and no error."""
    run = RunFolder(folder)
    date = _date_of(run)
    try:
        config = run.config()
        assert config is not None, "the caller has seen config.yaml"
        return _summarize_readable(run, config, date)
    except (GPTError, OSError) as error:
        return RunSummary(
            name=folder.name,
            text="",
            parameters=None,
            step=0,
            max_steps=0,
            best_loss=None,
            bits_per_char=None,
            date=date,
            status="unreadable",
            config=None,
            problem=first_line(error),
        )


def _summarize_readable(run: RunFolder, config: Config, date: datetime) -> RunSummary:
    last = run.pointed("last")
    state: dict[str, Any] = {}
    parameters = None
    if last is not None:
        state = read_state(last)
        parameters = count_saved_parameters(last / "model.safetensors")
    step = int(state.get("step", 0))
    return RunSummary(
        name=run.path.name,
        text=_text_of(config.data),
        parameters=parameters,
        step=step,
        max_steps=config.train.max_steps,
        best_loss=state.get("best_val_loss"),
        bits_per_char=_bits_per_char(run, state.get("best_step", -1)),
        date=date,
        status=_status_of(run, step, config.train.max_steps),
        config=config,
    )


def _date_of(run: RunFolder) -> datetime:
    pointer = run.path / "last.json"
    newest = pointer if pointer.is_file() else run.path / "config.yaml"
    return datetime.fromtimestamp(newest.stat().st_mtime).astimezone()


def _status_of(run: RunFolder, step: int, max_steps: int) -> Status:
    if run.is_being_trained():
        return "training"
    if step >= max_steps:
        return "finished"
    return "stopped"


def _text_of(data: DataConfig) -> str:
    if data.path is None:
        return data.source
    if isinstance(data.path, str):
        return data.path
    return ", ".join(data.path)


def _bits_per_char(run: RunFolder, best_step: int) -> float | None:
    """Return the bits per character that were logged at the best step, if they were."""
    if not run.metrics.is_file():
        return None
    for row in read_metrics(run.path):
        if row["step"] == best_step and "val/bits_per_char" in row:
            return float(row["val/bits_per_char"])
    return None


def count_saved_parameters(file: Path) -> int:
    """Count the numbers in a safetensors file by its header; a tied weight is there once.

    Raises:
        CheckpointError: the header is damaged.
    """
    try:
        with open_file(file) as opened:
            # The format begins with the length of its header, which is JSON.
            header_bytes = int.from_bytes(opened.read(8), "little")
            header = parse_json(opened.read(min(header_bytes, MAX_JSON_BYTES)))
        shapes = [entry["shape"] for name, entry in header.items() if name != "__metadata__"]
        return sum(math.prod(shape) for shape in shapes)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file} is damaged: {explained(error)}") from None


def differing_keys(summaries: Sequence[RunSummary]) -> list[str]:
    """Return the keys in which readable runs differ, but for `OWN_KEYS`, section by section."""
    values = [summary.config.leaves() for summary in summaries if summary.config is not None]
    if not values:
        return []
    return [
        key
        for key in values[0]
        if key not in OWN_KEYS and any(other[key] != values[0][key] for other in values)
    ]


@dataclass(frozen=True)
class SeedGroup:
    """Runs that differ in their seed only.

    Attributes:
        mean: of their best losses, in nats per token.
        deviation: the sample standard deviation; None for one run.
    """

    names: tuple[str, ...]
    config: Config
    mean: float
    deviation: float | None


def group_by_seed(summaries: Sequence[RunSummary]) -> list[SeedGroup]:
    """Return the finished runs, the seeds of a configuration together, the lowest mean first."""
    members: dict[str, list[RunSummary]] = {}
    for summary in summaries:
        has_loss = summary.status == "finished" and summary.best_loss is not None
        if summary.config is None or not has_loss:
            continue
        leaves = summary.config.leaves()
        configuration = repr({key: leaves[key] for key in leaves if key not in OWN_KEYS})
        members.setdefault(configuration, []).append(summary)
    groups = [_to_group(group) for group in members.values()]
    return sorted(groups, key=lambda group: group.mean)


def _to_group(summaries: Sequence[RunSummary]) -> SeedGroup:
    losses = [summary.best_loss for summary in summaries if summary.best_loss is not None]
    config = summaries[0].config
    assert config is not None
    deviation = None
    if len(losses) > 1:
        deviation = statistics.stdev(losses)
    names = tuple(sorted(summary.name for summary in summaries))
    return SeedGroup(names, config, statistics.mean(losses), deviation)
