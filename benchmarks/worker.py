"""One process of a step measurement: trains in turns, as `benchmarks.workers` asks on standard input."""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.loops import run_gpt, run_hugging_face, run_nanogpt
from benchmarks.turns import Turns, peak_resident_bytes
from benchmarks.workers import Job
from gpt.cli.common import report
from gpt.config import load_config
from gpt.errors import GPTError


def main() -> int:
    """Argument: a job as JSON. Answers are JSON lines on standard output, which nothing else can write to."""
    job = Job(**json.loads(sys.argv[1]))
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)

        def answer(content: dict[str, Any]) -> bool:
            print(json.dumps({**content, "peak_bytes": peak_resident_bytes()}), file=answers, flush=True)
            return sys.stdin.readline() != ""

        def begin(device: torch.device) -> Turns:
            wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
            return Turns(job.warmup, job.steps, answer, {}, wait)

        try:
            with tempfile.TemporaryDirectory(prefix="gpt-bench-") as folder:
                _run(job, Path(folder), begin)
        except GPTError as error:
            print(json.dumps({"error": str(error)}), file=answers, flush=True)
            return error.exit_code
    return 0


def _run(job: Job, folder: Path, begin: Callable[[torch.device], Turns]) -> None:
    loaded = load_config(Path(job.config), [*job.overrides, f"run.dir={folder}", "run.name=bench"])
    match job.kind:
        case "gpt":
            run_gpt(loaded, begin, report)
        case "nanogpt":
            run_nanogpt(loaded, Path(job.checkout), job.dtype, begin, report)
        case "hugging_face":
            run_hugging_face(loaded, job.dtype, folder, begin, report)


if __name__ == "__main__":
    sys.exit(main())
