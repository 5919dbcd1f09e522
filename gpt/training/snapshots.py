"""Snapshots of the model while it trains, so that one can watch it learn."""

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing

import numpy as np
import torch

from gpt.checkpoint import RunFolder
from gpt.config import TrainConfig
from gpt.config.sections import SEEDS
from gpt.generation import TextBatch
from gpt.generation.request import TextChunk
from gpt.generation.runtime import DecodeOptions, build_runtime
from gpt.inspection.views.snapshots import take_snapshot
from gpt.model import GPT, eval_mode
from gpt.system.errors import explained
from gpt.system.files import write_atomic
from gpt.system.progress import Report
from gpt.training.compiling import without_compilation
from gpt.training.monitor import Monitor
from gpt.training.plan import Plan

WriteLines = Callable[[], Generator[Mapping[int, TextChunk], None, None]]
LINE_TOKENS = 32
MOST = 40
"""Snapshots at evaluations, at the most, without that of step 0."""
LEAST_SECONDS, EVALUATION_SHARE = 1.0, 0.01
"""What those may take in any run, and how much of the time of a long one."""
EARLY = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
"""Shares of a run after which there is one too, since a model changes most at first."""
SHARE, SAMPLE_SHARE = 0.003, 0.007
"""How much of a run's time the early snapshots may take, and their samples."""
SAMPLE_LINES, SAMPLE_TOKENS = 6, 40
"""An early sample has several short lines, since computing them side by side takes no longer than one."""


class Snapshots(Monitor):
    """Writes `snapshots/step-000250.safetensors`.

    There is one before the first step, one at each evaluation, of many every so many, one at the end of the run, and
    early ones, which also have a sample, while they take less than `SHARE` of the time that the steps will take. One
    that cannot be taken is reported and is the last, and the training goes on.

    Args:
        take: makes the file with this sample.
        write_lines: yields what each of a few lines goes on with, by its number, once per token.
    """

    def __init__(
        self, run: RunFolder, train: TrainConfig, take: Callable[[str], bytes], write_lines: WriteLines, report: Report
    ) -> None:
        self._run, self._train, self._take, self._write_lines, self._report = run, train, take, write_lines, report
        evaluations = -(-train.max_steps // train.eval_interval)
        self._interval = train.eval_interval * -(-evaluations // MOST)
        self._early = {max(1, round(share * train.max_steps)) for share in EARLY}
        self._fastest, self._spent_early, self._spent_later = float("inf"), 0.0, 0.0
        self._has_failed = False

    def start(self, step: int, evaluated: bool = True) -> None:
        self._run.snapshots.mkdir(exist_ok=True)
        self._step = self._newest = step
        if step == 0:
            self._write(step)
        self._began = time.perf_counter()
        self._timed = step, self._began

    def progress(self, step: int, loss: float | None) -> None:
        begin = time.perf_counter()
        since, timed = self._timed
        pace = (begin - timed) / (step - since)
        if loss is not None:  # read back from the device, which has computed all of these steps
            self._fastest = min(self._fastest, pace)
            self._timed = step, begin
        self._step = step
        if step == self._train.max_steps or (step % self._interval == 0 and self._may_write(begin - self._began)):
            self._spent_later += self._write(step)
        elif step in self._early:
            whole = self._train.max_steps * (self._fastest if self._fastest < float("inf") else pace)
            if self._spent_early <= SHARE * whole:
                has_sample = step % self._train.eval_interval == 0  # of its evaluation
                self._spent_early += self._write(step, 0 if has_sample else SAMPLE_SHARE / len(EARLY) * whole)

    def close(self) -> None:
        """Take the last one of a run that ends before its last step."""
        if self._step > self._newest:
            self._write(self._step)

    def _may_write(self, seconds: float) -> bool:
        return self._spent_later <= max(LEAST_SECONDS, EVALUATION_SHARE * seconds)

    def _write(self, step: int, sample_seconds: float = 0) -> float:
        """Write a snapshot with a sample that takes so long; return the seconds of the rest."""
        if self._has_failed:
            return 0
        try:
            sample = self._sample(sample_seconds) if sample_seconds else ""
            begin = time.perf_counter()
            content = self._take(sample)
        except Exception as error:  # a picture must not end a training, whatever part of one's own it meets
            self._has_failed = True
            self._report(f"warning: no snapshots from step {step} on: {explained(error)}; training continues")
            return 0
        write_atomic(self._run.snapshot(step), content)
        self._newest = step
        self._timed = step, time.perf_counter()
        return self._timed[1] - begin

    def _sample(self, seconds: float) -> str:
        """Return lines that were written in so many seconds, about; there may be none."""
        end, lines = time.perf_counter() + seconds, [""] * SAMPLE_LINES
        with closing(self._write_lines()) as steps:
            for chunks in steps:
                for row, chunk in chunks.items():
                    lines[row] += chunk.text.replace("\n", "⏎")
                if time.perf_counter() > end:
                    break
        return "\n".join(lines).strip("\n")


def build_snapshots(plan: Plan, model: GPT, report: Report) -> Snapshots:
    """Return what writes snapshots of the model with its attention to the first tokens of the validation split."""
    config, dataset, params = plan.config, plan.dataset, plan.config.sample
    device = plan.compute.device  # else the plan, and with it a checkpoint, would stay in memory
    line = dataset.val[: min(LINE_TOKENS, config.model.block_size)]
    length = min(SAMPLE_TOKENS, config.train.sample_tokens)
    short = params.params(max_new_tokens=length)
    seeds = [(params.seed + row) % SEEDS for row in range(SAMPLE_LINES)]

    def take(sample: str) -> bytes:
        idx = torch.from_numpy(np.asarray(line).astype(np.int64)).to(device)
        with without_compilation(model), eval_mode(model):
            return take_snapshot(model, dataset.tokenizer, idx, sample)

    def write_lines() -> Generator[Mapping[int, TextChunk], None, None]:
        with without_compilation(model):
            runtime = build_runtime(model, DecodeOptions("eager"))
            batch = TextBatch(runtime, dataset.tokenizer, [""] * SAMPLE_LINES, short, seeds)
            while batch.active:
                yield batch.step()

    return Snapshots(plan.run, config.train, take, write_lines, report)
