"""Whole training processes with a clock on what they print."""

import json
import re
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from benchmarks.cuda.sizes import ROOT, Size
from benchmarks.processes import environment, failure
from benchmarks.recipe import NAME, train_command
from gpt.checkpoint import load_trained
from gpt.cli.common import report
from gpt.config import load_config
from gpt.data import Dataset, prepare
from gpt.device import Compute
from gpt.errors import GPTError
from gpt.evaluation.loss import evaluate
from gpt.evaluation.windows import full_batches
from gpt.settings import read_settings

CONFIGS = ROOT / "configs"
EVALUATION = re.compile(r"^step +(\d+) .*validation loss ([\d.]+)")


@dataclass(frozen=True)
class Line:
    """What a process printed, and how many seconds after its start."""

    seconds: float
    text: str


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


def timed_lines(command: Sequence[str], caches: Path, folder: Path | None = None) -> tuple[float, list[Line]]:
    """Seconds of a process with cold caches of compiled code, and what it printed.

    Raises:
        GPTError: it failed; the message has its last line.
    """
    start = time.perf_counter()
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**environment(caches), "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        lines = [Line(time.perf_counter() - start, text.rstrip()) for text in process.stdout]
    seconds = time.perf_counter() - start
    if process.returncode != 0:
        raise GPTError(failure(command, process.returncode, "\n".join(line.text for line in lines)))
    return seconds, lines


def open_data(size: Size) -> Dataset:
    """The text that is learned."""
    return prepare(load_config(CONFIGS / "shakespeare.yaml", size.data).config.data, read_settings(), report)


def train_ours(config: Path, size: Size, dataset: Dataset, folder: Path) -> Run:
    """`scripts/train.py` on a recipe, into a folder."""
    overrides = (*size.data, *size.overrides, f"run.device={size.device}")
    seconds, lines = timed_lines(train_command(str(config), overrides, folder), folder / "caches")
    evaluations = [(line.seconds, float(m.group(2))) for line in lines if (m := EVALUATION.match(line.text))]
    metrics = [json.loads(line) for line in (folder / NAME / "metrics.jsonl").read_text("utf-8").splitlines()]
    logged = [row for row in metrics if "speed/tokens_per_second" in row]
    loaded = load_trained(folder / NAME, folder, torch.device(size.device))
    loss = loss_of(loaded.model, dataset, loaded.config.model.block_size, size.device)
    return Run(
        seconds,
        evaluations,
        statistics.median(row["speed/tokens_per_second"] for row in logged),
        loss,
        max(int(row["speed/memory_bytes"]) for row in logged) if size.device == "cuda" else None,
    )


def loss_of(model: nn.Module, dataset: Dataset, block_size: int, device: str) -> float:
    """Mean loss over the whole validation split, in float32."""
    where = torch.device(device)
    compute = Compute(where, torch.float32)
    return evaluate(model.to(where), full_batches(dataset.val, block_size, 64), compute).loss
