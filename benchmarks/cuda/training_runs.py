"""Whole training processes with a clock on what they print."""

import json
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.cuda.workload import ROOT, Workload
from benchmarks.processes import time_process
from benchmarks.training_runs import NAME, loss_of, train_command
from gpt.checkpoint import load_trained
from gpt.cli.command import report
from gpt.config import load_config
from gpt.corpora import prepare
from gpt.data import Dataset
from gpt.environment import read_settings

CONFIGS = ROOT / "configs"
EVALUATION = re.compile(r"^step +(\d+) .*validation loss ([\d.]+)")


@dataclass(frozen=True)
class Run:
    """One training process.

    Attributes:
        seconds: from its start to its end.
        evaluations: seconds from its start, and the loss by its own estimate, in order.
        tokens_per_second: median over its log.
        loss: of what it kept, over the whole validation split, in nats per token.
        peak_bytes: on the device; None where it does not say.
    """

    seconds: float
    evaluations: Sequence[tuple[float, float]]
    tokens_per_second: float
    loss: float
    peak_bytes: int | None = None

    def seconds_to(self, loss: float) -> float | None:
        """When an evaluation first gave that loss or less; None: never."""
        return next((seconds for seconds, value in self.evaluations if value <= loss), None)


def open_data(workload: Workload) -> Dataset:
    """Return the text to train on."""
    return prepare(load_config(CONFIGS / "shakespeare.yaml", workload.data).config.data, read_settings(), report)


def train_ours(config: Path, workload: Workload, dataset: Dataset, folder: Path) -> Run:
    """Run `scripts/train.py` on a recipe, into a folder."""
    overrides = (*workload.data, *workload.overrides, f"run.device={workload.device}")
    seconds, lines = time_process(train_command(str(config), overrides, folder), folder / "caches")
    evaluations = [(line.seconds, float(m.group(2))) for line in lines if (m := EVALUATION.match(line.text))]
    metrics = [json.loads(line) for line in (folder / NAME / "metrics.jsonl").read_text("utf-8").splitlines()]
    logged = [row for row in metrics if "speed/tokens_per_second" in row]
    loaded = load_trained(folder / NAME, folder, torch.device(workload.device))
    loss = loss_of(loaded.model, dataset, loaded.config.model.block_size, workload.device)
    return Run(
        seconds,
        evaluations,
        statistics.median(row["speed/tokens_per_second"] for row in logged),
        loss,
        max(int(row["speed/memory_bytes"]) for row in logged) if workload.device == "cuda" else None,
    )
