"""Train for `train step`: warm-up steps at the first request, then a number of steps at each other.

The argument of this process is a job as JSON: `trainer` (gpt or nanogpt), `config`, `overrides`,
`warmup`, `steps`, and for nanoGPT `dtype` and `checkout`. `--plugin` with a file may follow it.
"""

import argparse
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
from gpt.cli.shared_options import add_plugin_option, load_given_plugins
from gpt.config.sources import LoadedConfig, load_config
from gpt.data.batches import BatchSampler
from gpt.data.preparation import prepare
from gpt.system.device import choose_device
from gpt.system.environment import read_settings
from gpt.system.errors import GPTError
from gpt.system.machine import peak_memory_bytes
from gpt.system.progress import silent
from gpt.training.monitor import Monitor, MonitorGroup
from gpt.training.native_step import NativeStepper
from gpt.training.train import Host, build_trainer, fill_in

STEPS_ONLY = (
    *("train.max_steps=1000000", "train.eval_interval=1000000", "train.log_interval=1000000"),
    *("train.teacher=null", "run.snapshots=false"),
)
"""Overrides: no evaluation, no log line, no teacher and no snapshot before the process is ended."""
SHAPE = ("n_layer", "n_head", "n_embd", "block_size", "bias", "dropout", "vocab_size")


class StepTimer(Monitor):
    """Times the steps of a training loop, which calls `progress` after each.

    It writes a line of JSON to `answers` after `warmup` steps, and then after every `steps`.
    Training pauses until a line on standard input asks for more. The end of the input raises
    SystemExit.
    """

    def __init__(self, warmup: int, steps: int, answers: TextIO) -> None:
        self._requested = warmup
        self._steps = steps
        self._answers = answers
        self._milliseconds: list[float] = []

    def begin(self, model: torch.nn.Module, dtype: str, blocks: str) -> None:
        """Start the clock.

        What is trained, in which dtype and by which blocks, becomes part of every answer.
        """
        parameters = list(model.parameters())
        self._is_cuda = parameters[0].is_cuda
        count = sum(parameter.numel() for parameter in parameters)
        self._about = {"dtype": dtype, "blocks": blocks, "parameters": count}
        self._last = time.perf_counter()

    def progress(self, step: int, loss: float | None) -> None:
        """Record the time of a step.

        After the last requested step, answer and wait, which is part of no step's time.
        """
        if self._is_cuda:
            torch.cuda.synchronize()  # until now the step is only queued
        now = time.perf_counter()
        self._milliseconds.append((now - self._last) * 1000)
        self._last = now
        if len(self._milliseconds) < self._requested:
            return
        peak = peak_memory_bytes(torch.device("cpu"))
        answer = {**self._about, "peak_bytes": peak, "milliseconds": self._milliseconds}
        print(json.dumps(answer), file=self._answers, flush=True)
        if not sys.stdin.readline():
            raise SystemExit
        self._milliseconds = []
        self._requested = self._steps
        self._last = time.perf_counter()


def train_gpt(loaded: LoadedConfig, timer: StepTimer) -> None:
    """Run `Trainer.run`, which calls its monitor after every step."""
    trainer = build_trainer(loaded, Host(read_settings(), report))
    trainer.monitor = MonitorGroup([timer], report)
    blocks = "eager"
    if isinstance(trainer.stepper, NativeStepper):
        blocks = "native"
    elif trainer.config.run.compile:
        blocks = "compiled"
    dtype = str(trainer.compute.dtype).removeprefix("torch.")
    timer.begin(trainer.model, dtype, blocks)
    trainer.run()


def train_nanogpt(loaded: LoadedConfig, timer: StepTimer, checkout: Path, dtype: str) -> None:
    """Train nanoGPT's model by its optimizer on our batches, as an iteration of its train.py does.

    Its train.py never uses autocast on a CPU. In bfloat16, the figures are those that it would have
    with autocast. The training has no end; the timer ends the process.
    """
    dataset = prepare(loaded.config.data, read_settings(), silent)
    config = fill_in(loaded.named_config, dataset)
    device = choose_device(config.run.device)
    optim = config.optim
    train = config.train
    torch.set_num_threads(config.run.threads or torch.get_num_threads())
    shape = {key: getattr(config.model, key) for key in SHAPE}
    model = build_nanogpt(checkout, shape).to(device)
    optimizer = model.configure_optimizers(
        optim.weight_decay, optim.learning_rate, optim.betas, device.type
    )
    sampler = BatchSampler(dataset.train, config.model.block_size, config.run.seed)
    timer.begin(model, dtype, "eager")
    while True:
        for _ in range(train.grad_accum_steps):
            inputs, targets = sampler.get_batch(train.batch_size)  # (B, T) each
            with torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
                _, loss = model(inputs.to(device), targets.contiguous().to(device))
                loss = loss / train.grad_accum_steps
            loss.backward()
        if optim.grad_clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), optim.grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        timer.progress(0, None)


def main() -> int:
    """Train as the job says, until the input ends; return the exit status."""
    job = json.loads(sys.argv[1])
    # standard output is for answers; what else is printed there goes to standard error
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    parser = argparse.ArgumentParser()
    add_plugin_option(parser)
    load_given_plugins(parser.parse_args(sys.argv[2:]))
    sys.stdin.readline()  # the first request
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
