"""A process that trains for `train step`: warm-up steps at the first request, then a number of steps for each.

Its argument is a job as JSON: `trainer` (gpt or nanogpt), `config`, `overrides`, `warmup`, `steps`, and
for nanoGPT `dtype` and `checkout`. What follows it is `--plugin` with a file, or nothing.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.nanogpt import train_nanogpt
from benchmarks.step_timer import StepTimer
from gpt.cli.command import report
from gpt.cli.shared_options import load_given_plugins
from gpt.config import LoadedConfig, load_config
from gpt.environment import read_settings
from gpt.errors import GPTError
from gpt.kernels.training.block import NativeBlock
from gpt.training.compiling import is_compiled
from gpt.training.setup import open_session

LONG = ("max_steps", "eval_interval", "log_interval")
STEPS_ONLY = (
    *(f"train.{key}=1000000" for key in LONG),
    *("train.eval_first=false", "train.teacher_share=null"),
)
"""Overrides: no evaluation, no log line and no teacher before the process is ended."""


def train_gpt(loaded: LoadedConfig, timer: StepTimer) -> None:
    """Run `Trainer.run`, which tells its monitor of every step."""
    trainer = open_session(loaded, read_settings(), report)
    trainer.monitor = timer
    is_native = isinstance(trainer.model.h[0], NativeBlock)
    blocks = "native" if is_native else "compiled" if is_compiled(trainer.model) else "eager"
    timer.begin(trainer.model, str(trainer.compute.dtype).removeprefix("torch."), blocks)
    trainer.run()


def main() -> int:
    """Train until the input ends."""
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
