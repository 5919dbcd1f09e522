"""Summaries of the runs in a folder, and how they differ."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from gpt.api.metrics import read_metrics
from gpt.checkpoint import RunFolder, find_run, read_state
from gpt.config import Config, DataConfig
from gpt.system.errors import CheckpointError, GPTError, explained, first_line
from gpt.system.files import MAX_JSON_BYTES, open_file, parse_json
from gpt.training.training_state import TrainingState

Status = Literal["finished", "training", "stopped", "weights only", "unreadable"]
"""How far a run has come.

`weights only` is a folder that no training made, but `gpt quantize`, `gpt import-model` or
`gpt.save`.
"""
OWN_KEYS = frozenset({"run.name", "run.dir", "run.seed", "model.vocab_size"})
"""Keys that differ between the seeds of one experiment; the vocabulary follows from the text."""


@dataclass(frozen=True)
class RunSummary:
    """What a run is, and how far it has come.

    Attributes:
        text: the named corpus, or the paths of the texts; empty if it is not known.
        parameters: None before the first checkpoint.
        best_loss: lowest validation loss, in nats per token; None before the first evaluation.
        bits_per_char: the validation loss of the same step, in bits per character.
        date: of the last checkpoint, or of the configuration where there is none.
        config: None if there is no training to compare with others: `weights only`, `unreadable`.
        data: the fingerprint of the text and of its split; empty before the first checkpoint.
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
    data: str = ""
    problem: str = ""


def summarize_runs(runs: Path, names: Sequence[str] = ()) -> list[RunSummary]:
    """Return the runs below a folder, or those that are named, from the newest to the oldest.

    Args:
        names: names of runs below `runs`, or paths of run folders; empty: all runs below `runs`.

    Raises:
        CheckpointError: the folder is missing, or there is no run of a given name.
    """
    if names:
        folders = [_named_run(name, runs) for name in names]
    elif runs.is_dir():
        folders = [file.parent for file in runs.glob("*/config.yaml")]
    else:
        raise CheckpointError(
            f"there is no folder {runs}; train first, or give another with --runs"
        )
    # A run that was named twice, such as by its name and by its path, is listed once.
    summaries = [summarize(folder) for folder in dict.fromkeys(folders)]
    return sorted(summaries, key=lambda summary: summary.date, reverse=True)


def _named_run(name: str, runs: Path) -> Path:
    folder = find_run(Path(name), runs)
    if not (folder / "config.yaml").is_file():
        raise CheckpointError(f"{folder} is not a run folder: it has no config.yaml")
    return folder


def summarize(folder: Path) -> RunSummary:
    """Return what the files of a run say; a damaged run is `unreadable`, and no error is raised."""
    run = RunFolder(folder)
    date = _date_of(run)
    try:
        config = run.config()
        assert config is not None, "the caller has seen config.yaml"
        if run.is_checkpoint:
            return _summarize_weights(run, config, date)
        return _summarize_training(run, config, date)
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


def _summarize_training(run: RunFolder, config: Config, date: datetime) -> RunSummary:
    """Summarize a run by its last checkpoint, if it has saved one already."""
    state = TrainingState()
    data = ""
    parameters = None
    last = run.pointed("last")
    if last is not None:
        saved = read_state(last)
        state = TrainingState.from_dict(saved)
        data = str(saved.get("data", ""))
        parameters = count_saved_parameters(last / "model.safetensors")
    status: Status = "stopped"
    if run.is_being_trained():
        status = "training"
    elif state.is_over(config.train):
        status = "finished"
    return RunSummary(
        name=run.path.name,
        text=_text_of(config.data),
        parameters=parameters,
        step=state.step,
        max_steps=config.train.max_steps,
        best_loss=state.best_val_loss,
        bits_per_char=_bits_per_char(run, state.best_step),
        date=date,
        status=status,
        config=config,
        data=data,
    )


def _summarize_weights(run: RunFolder, config: Config, date: datetime) -> RunSummary:
    """Summarize a folder that is a checkpoint by itself.

    It has no losses: those in its state, if it has any, are of the weights before `gpt quantize`.
    """
    state = read_state(run.path)
    # Only a training writes `data`, the fingerprint of its text; the configuration of an imported
    # model has the default text, which it was not trained on.
    is_from_training = "data" in state
    return RunSummary(
        name=run.path.name,
        text=_text_of(config.data) if is_from_training else "",
        parameters=count_saved_parameters(run.path / "model.safetensors"),
        step=0,
        max_steps=0,
        best_loss=None,
        bits_per_char=None,
        date=date,
        status="weights only",
        config=None,
    )


def _date_of(run: RunFolder) -> datetime:
    pointer = run.path / "last.json"
    newest = pointer if pointer.is_file() else run.path / "config.yaml"
    return datetime.fromtimestamp(newest.stat().st_mtime).astimezone()


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
    """Count the parameters in a safetensors file by its header; a tied weight is there once.

    Raises:
        CheckpointError: the header is damaged.
    """
    try:
        with open_file(file) as opened:
            # The format begins with the length of its header, which is JSON.
            header_bytes = int.from_bytes(opened.read(8), "little")
            header = parse_json(opened.read(min(header_bytes, MAX_JSON_BYTES)))
        return sum(_count_parameters(name, header[name]) for name in header)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file} is damaged: {explained(error)}") from None


def _count_parameters(name: str, entry: Mapping[str, Any]) -> int:
    """Count the parameters that an entry in the header of a safetensors file stands for."""
    is_scales = name.endswith(".scales")  # of quantized weights, see gpt/model/quantized.py
    if name == "__metadata__" or is_scales:
        return 0
    size = math.prod(entry["shape"])
    if entry["dtype"] == "U8":
        return 2 * size  # A byte has two int4 weights.
    return size


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
    """Finished runs on one text that differ in their seed only.

    Attributes:
        config: that of one of the runs.
        data: the fingerprint of their text.
        mean: the mean of their best losses, in nats per token.
        deviation: the sample standard deviation of these losses; None for one run.
    """

    names: tuple[str, ...]
    config: Config
    data: str
    mean: float
    deviation: float | None


def group_by_seed(summaries: Sequence[RunSummary]) -> list[SeedGroup]:
    """Return the finished runs, the seeds of a configuration together, the lowest mean first.

    The path of a text stays the same when the text is edited, so that its fingerprint is compared
    too: losses on two texts have no mean.
    """
    members: dict[str, list[RunSummary]] = {}
    for summary in summaries:
        has_loss = summary.status == "finished" and summary.best_loss is not None
        if summary.config is None or not has_loss:
            continue
        leaves = summary.config.leaves()
        compared = {key: leaves[key] for key in leaves if key not in OWN_KEYS}
        experiment = repr((summary.data, compared))
        members.setdefault(experiment, []).append(summary)
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
    return SeedGroup(names, config, summaries[0].data, statistics.mean(losses), deviation)
