"""A process that trains for `train step`: warm-up steps at the first request, then a number of steps for each.

Its argument is a job as JSON: `trainer` (gpt or nanogpt), `config`, `overrides`, `warmup`, `steps`, and
for nanoGPT `dtype` and `checkout`. What follows it is `--plugin` with a file, or nothing.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TextIO

import torch

from benchmarks.nanogpt import build_nanogpt
from gpt.cli.command import report
from gpt.cli.shared_options import load_given_plugins
from gpt.config.sources import LoadedConfig, load_config
from gpt.data.batches import BatchSampler
from gpt.data.preparation import prepare
from gpt.native.training.block import NativeBlock
from gpt.system.device import choose_device
from gpt.system.environment import read_settings
from gpt.system.errors import GPTError
from gpt.system.machine import peak_memory_bytes
from gpt.system.progress import silent
from gpt.training.monitor import Monitor, MonitorGroup
from gpt.training.train import TrainRequest, build_trainer, resolve

STEPS_ONLY = (
    *("train.max_steps=1000000", "train.eval_interval=1000000", "train.log_interval=1000000"),
    *("train.teacher=null", "run.snapshots=false"),
)
"""Overrides: no evaluation, no log line and no teacher before the process is ended."""


SHAPE = ("n_layer", "n_head", "n_embd", "block_size", "bias", "dropout", "vocab_size")


class StepTimer(Monitor):
    """Times the steps of a training loop, which calls `progress` after each.

    It writes a line of JSON to `answers` after `warmup` steps, and then after every `steps`; training pauses until a
    line on standard input asks for more. The end of the input raises SystemExit.
    """

    def __init__(self, warmup: int, steps: int, answers: TextIO) -> None:
        self._left, self._steps, self._answers = warmup, steps, answers
        self._milliseconds: list[float] = []

    def begin(self, model: torch.nn.Module, dtype: str, blocks: str) -> None:
        """Start the clock; what is trained, in which type and by which blocks becomes part of every answer."""
        parameters = list(model.parameters())
        count, self._is_cuda = sum(parameter.numel() for parameter in parameters), parameters[0].is_cuda
        self._about = {"dtype": dtype, "blocks": blocks, "parameters": count}
        self._last = time.perf_counter()

    def progress(self, step: int, loss: float | None) -> None:
        """Note the time of a step; answer and wait when all requested steps are done, off the clock."""
        if self._is_cuda:
            torch.cuda.synchronize()
        now = time.perf_counter()
        self._milliseconds.append((now - self._last) * 1000)
        self._last = now
        if len(self._milliseconds) < self._left:
            return
        peak = peak_memory_bytes(torch.device("cpu"))
        answer = {**self._about, "peak_bytes": peak, "milliseconds": self._milliseconds}
        print(json.dumps(answer), file=self._answers, flush=True)
        if not sys.stdin.readline():
            raise SystemExit
        self._milliseconds, self._left, self._last = [], self._steps, time.perf_counter()


def train_gpt(loaded: LoadedConfig, timer: StepTimer) -> None:
    """Run `Trainer.run`, which tells its monitor of every step."""
    trainer = build_trainer(TrainRequest(loaded, read_settings(), report))
    trainer.monitor = MonitorGroup([timer], report)
    is_native = isinstance(trainer.model.h[0], NativeBlock)
    blocks = "native" if is_native else "compiled" if trainer.config.run.compile else "eager"
    timer.begin(trainer.model, str(trainer.compute.dtype).removeprefix("torch."), blocks)
    trainer.run()


def train_nanogpt(loaded: LoadedConfig, timer: StepTimer, checkout: Path, dtype: str) -> None:
    """Train as an iteration of nanoGPT's train.py does, with its model and optimizer, on our batches, without end.

    Its train.py never uses autocast on a CPU: bfloat16 there is what it would be with it.
    """
    dataset = prepare(loaded.config.data, read_settings(), silent)
    config, device = resolve(loaded, dataset), choose_device(loaded.config.run.device)
    optim, train = config.optim, config.train
    torch.set_num_threads(config.run.threads or torch.get_num_threads())
    model = build_nanogpt(checkout, {key: getattr(config.model, key) for key in SHAPE}).to(device)
    optimizer = model.configure_optimizers(optim.weight_decay, optim.learning_rate, optim.betas, device.type)
    sampler = BatchSampler(dataset.train, config.model.block_size, config.run.seed)
    timer.begin(model, dtype, "eager")
    while True:
        for _ in range(train.grad_accum_steps):
            inputs, targets = sampler.get_batch(train.batch_size)
            with torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
                loss = model(inputs.to(device), targets.contiguous().to(device))[1] / train.grad_accum_steps
            loss.backward()
        if optim.grad_clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), optim.grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        timer.progress(0, None)


def main() -> int:
    job, answers = json.loads(sys.argv[1]), os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed is not an answer
    load_given_plugins(sys.argv[2:])
    sys.stdin.readline()
    timer = StepTimer(job["warmup"], job["steps"], answers)
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as folder:
        overrides = [*job["overrides"], *STEPS_ONLY, f"run.dir={folder}", "run.name=bench"]
        try:
            loaded = load_config(Path(job["config"]), overrides)
            if job["trainer"] == "gpt":
                train_gpt(loaded, timer)
            else:
                train_nanogpt(loaded, timer, Path(job["checkout"]), job["dtype"])
        except GPTError as error:
            print(json.dumps({"error": str(error)}), file=answers, flush=True)
            return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
