"""Run the stages one after another, each in its own process, so that a crash on the device ends only one stage."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from benchmarks.cuda import stage_result
from benchmarks.cuda.stage_result import StageResult, failed
from benchmarks.cuda.workload import Workload
from benchmarks.measure import describe_machine
from benchmarks.processes import environment

MINUTES = {"tests": 5, "equality": 4, "memory": 3, "decoding": 8, "recipes": 10, "race": 10}
"""Every stage in order, and its time limit; 40 in total."""

Command = Callable[[str], Sequence[str]]


def run_stage(name: str, workload: Workload, folder: Path) -> bool:
    """Run one stage here and write what it found; return whether all was well."""
    module = import_module(f"benchmarks.cuda.stages.{name}")
    start = time.perf_counter()
    found: StageResult = module.run(workload)
    stage_result.write(folder, name, found, _about(workload.device, time.perf_counter() - start))
    return not found.problems


def run_all(names: Sequence[str], command: Command, device: str, folder: Path) -> bool:
    """Run stages in processes; one that fails or takes too long is noted, and the others go on.

    Args:
        names: of `MINUTES`.
        command: that runs the stage of a name and ends with 0, or 1 where its outcome has problems.
        device: for the record.
        folder: of the results; what is there of these stages is replaced.

    Returns:
        Whether all was well.
    """
    good = True
    for name in names:
        result = folder / f"{stage_result.PREFIX}{name}.json"
        result.unlink(missing_ok=True)
        print(f"{name} ...", file=sys.stderr, flush=True)
        start = time.perf_counter()
        reason = _start(command(name), 60 * MINUTES[name])
        if not result.is_file():
            stage_result.write(folder, name, failed(name, reason), _about(device, time.perf_counter() - start))
        good &= reason == ""
    return good


def _start(command: Sequence[str], limit: float) -> str:
    """Run a process; return in one line why it failed, or an empty string."""
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
    try:
        log = process.communicate(timeout=limit)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"it took more than {limit / 60:.0f} minutes"
    except BaseException:
        process.kill()
        raise
    sys.stderr.write(log)
    last = next((line for line in reversed(log.splitlines()) if line.strip()), "it printed nothing")
    return "" if process.returncode == 0 else f"ended with {process.returncode}: {last.strip()[:300]}"


def _about(device: str, seconds: float) -> dict[str, Any]:
    name = "no GPU"
    with contextlib.suppress(RuntimeError, AssertionError):  # a device that a stage broke for good has no name
        name = torch.cuda.get_device_name() if device == "cuda" else name
    return {**describe_machine(), "gpu": name, "cuda": torch.version.cuda, "seconds": seconds}
