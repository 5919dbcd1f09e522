"""A process that trains for `train step` and `train busy`: the warm-up at the first request, then a turn for each.

Its argument is a job as JSON: `trainer` (gpt, nanogpt or hugging_face), `config`, `overrides`, `warmup`, `steps`, and
for peers `dtype` and `checkout`.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TextIO

import torch

from benchmarks.hugging_face import train_gpt2
from benchmarks.measure import Row
from benchmarks.nanogpt import train_nanogpt
from gpt.accounting.machine import peak_memory_bytes
from gpt.cli.common import report
from gpt.config import LoadedConfig, load_config
from gpt.errors import GPTError
from gpt.kernels.training.block import NativeBlock
from gpt.settings import read_settings
from gpt.training.compiling import is_compiled
from gpt.training.monitor import Monitor
from gpt.training.session import open_session

LONG = ("max_steps", "eval_interval", "log_interval")
STEPS_ONLY = (*(f"train.{key}=1000000" for key in LONG), "train.eval_first=false")
"""Overrides: no evaluation and no log line before the process is ended."""


class Turns(Monitor):
    """Times the steps of a training loop, which calls `progress` after each: `warmup` of them, then `steps` a turn.

    After each turn it writes a line of JSON to `answers`; a line on standard input begins the next, and its end raises
    SystemExit.
    """

    def __init__(self, warmup: int, steps: int, answers: TextIO) -> None:
        self._left, self._steps, self._answers = warmup, steps, answers
        self._milliseconds: list[float] = []

    def begin(self, model: torch.nn.Module, dtype: str, blocks: str) -> None:
        """Note what is trained, in which type, and how its blocks run."""
        parameters = list(model.parameters())
        count, self._is_cuda = sum(parameter.numel() for parameter in parameters), parameters[0].is_cuda
        self._about = {"dtype": dtype, "blocks": blocks, "parameters": count}
        self._last = time.perf_counter()

    def progress(self, step: int, loss: float | None) -> None:
        """Note the time of a step; at the end of a turn, answer and wait, which counts in no step."""
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


def train_gpt(loaded: LoadedConfig, turns: Turns, job: Row) -> None:
    """Run `Trainer.run`, which tells its monitor of every step."""
    trainer = open_session(loaded, read_settings(), report)
    trainer.monitor = turns
    is_native = isinstance(trainer.model.h[0], NativeBlock)
    blocks = "native" if is_native else "compiled" if is_compiled(trainer.model) else "eager"
    turns.begin(trainer.model, str(trainer.compute.dtype).removeprefix("torch."), blocks)
    trainer.run()


TRAINERS = {"gpt": train_gpt, "nanogpt": train_nanogpt, "hugging_face": train_gpt2}


def main() -> int:
    """Train in turns, until the input ends."""
    job, answers = json.loads(sys.argv[1]), os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed is no answer
    sys.stdin.readline()
    turns = Turns(job["warmup"], job["steps"], answers)
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as folder:
        overrides = [*job["overrides"], *STEPS_ONLY, f"run.dir={folder}", "run.name=bench"]
        try:
            loaded = load_config(Path(job["config"]), overrides)
            TRAINERS[job["trainer"]](loaded, turns, job)
        except GPTError as error:
            print(json.dumps({"error": str(error)}), file=answers, flush=True)
            return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
