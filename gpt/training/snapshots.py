"""Snapshots of the model while it trains, so that one can watch it learn."""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gpt.config import TrainConfig
from gpt.config.sections import SEEDS
from gpt.data import Tokenizer
from gpt.errors import GPTError
from gpt.files import write_atomic
from gpt.generation import TextBatch
from gpt.generation.backends.selection import DecodeOptions, EagerRuntime
from gpt.generation.request import TextChunk
from gpt.model import GPT, eval_mode
from gpt.training.compiling import without_compilation
from gpt.training.monitor import Monitor
from gpt.training.plan import Plan

Take = Callable[[GPT, Tokenizer, Tensor, str], bytes]
"""Makes the file of a snapshot from a model, its tokenizer, the ids (T,) of a line, and a sample."""
WriteLines = Callable[[], Generator[Mapping[int, TextChunk], None, None]]
LINE_TOKENS = 32
MOST = 40
"""Snapshots at evaluations, at the most."""
EARLY = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
"""Shares of a run after which there is one too, since a model changes most at first."""
SHARE, SAMPLE_SHARE = 0.003, 0.007
"""How much of a run's time the early snapshots may take, and their samples."""
SAMPLE_LINES, SAMPLE_TOKENS = 6, 40
"""An early sample has several short lines, since computing them side by side takes no longer than one."""


class Snapshots(Monitor):
    """Writes `snapshots/step-000250.safetensors`; a resumed run first removes those after its step.

    There is one before the first step, one at each evaluation, of many every so many, and early ones, which also have a
    sample, while they take less than `SHARE` of the time that the steps will take.

    Args:
        take: makes the file with this sample.
        write_lines: yields what each of a few lines goes on with, by its number, once per token.
    """

    def __init__(self, folder: Path, train: TrainConfig, take: Callable[[str], bytes], write_lines: WriteLines) -> None:
        self._folder, self._train, self._take, self._write_lines = folder, train, take, write_lines
        evaluations = -(-train.max_steps // train.eval_interval)
        self._interval = train.eval_interval * -(-evaluations // MOST)
        self._early = {max(1, round(share * train.max_steps)) for share in EARLY}
        self._fastest, self._spent = float("inf"), 0.0

    def start(self, step: int, evaluated: bool = True) -> None:
        self._folder.mkdir(exist_ok=True)
        later = [snapshot_file(self._folder, each) for each in snapshot_steps(self._folder) if each > step]
        for file in [*self._folder.glob(".*.tmp"), *later]:
            file.unlink()
        if step == 0:
            self._write(step, "")
        self._last = time.perf_counter()

    def progress(self, step: int, loss: float | None) -> None:
        begin = time.perf_counter()
        self._fastest = min(self._fastest, begin - self._last)
        whole = self._fastest * self._train.max_steps
        if step % self._train.eval_interval == 0 or step == self._train.max_steps:
            if step % self._interval == 0 or step == self._train.max_steps:
                self._write(step, "")
        elif step in self._early and self._spent <= SHARE * whole:
            sample = self._sample(SAMPLE_SHARE / len(EARLY) * whole)
            written = time.perf_counter()
            self._write(step, sample)
            self._spent += time.perf_counter() - written
        self._last = time.perf_counter()

    def _sample(self, seconds: float) -> str:
        """Return lines that were written in so many seconds, about; there may be none."""
        end, lines = time.perf_counter() + seconds, [""] * SAMPLE_LINES
        with suppress(GPTError), closing(self._write_lines()) as steps:  # what is not finite, the training reports
            for chunks in steps:
                for row, chunk in chunks.items():
                    lines[row] += chunk.text.replace("\n", "⏎")
                if time.perf_counter() > end:
                    break
        return "\n".join(lines).strip("\n")

    def _write(self, step: int, sample: str) -> None:
        try:
            content = self._take(sample)
        except (GPTError, KeyError, AttributeError):  # attention of one's own may have no weights to show
            return
        write_atomic(snapshot_file(self._folder, step), content)


def build_snapshots(plan: Plan, model: GPT, make: Take) -> Snapshots:
    """Return what writes snapshots of the model with its attention to the first tokens of the validation split."""
    config, dataset, params = plan.config, plan.dataset, plan.config.sample
    device = plan.compute.device  # else the plan, and with it a checkpoint, would stay in memory
    line = dataset.val[: min(LINE_TOKENS, config.model.block_size)]
    length = min(SAMPLE_TOKENS, config.train.sample_tokens)
    short = params.model_copy(update={"max_new_tokens": length, "empty_prompt": "start"})
    seeds = [(params.seed + row) % SEEDS for row in range(SAMPLE_LINES)]

    def take(sample: str) -> bytes:
        idx = torch.from_numpy(np.asarray(line).astype(np.int64)).to(device)
        with without_compilation(model), eval_mode(model):
            return make(model, dataset.tokenizer, idx, sample)

    def write_lines() -> Generator[Mapping[int, TextChunk], None, None]:
        with without_compilation(model):
            runtime = EagerRuntime(model, DecodeOptions())
            batch = TextBatch(runtime, dataset.tokenizer, [""] * SAMPLE_LINES, short, seeds)
            while batch.active:
                yield batch.step()

    return Snapshots(plan.run.snapshots, config.train, take, write_lines)


def snapshot_file(folder: Path, step: int) -> Path:
    """Return where the snapshot of a step is."""
    return folder / f"step-{step:06d}.safetensors"


def snapshot_steps(folder: Path) -> Sequence[int]:
    """Return the steps that have a snapshot in a folder, which may be missing."""
    names = (path.stem.removeprefix("step-") for path in folder.glob("step-*.safetensors"))
    return sorted(int(name) for name in names if name.isdecimal())
