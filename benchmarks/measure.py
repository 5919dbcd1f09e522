"""Interleaved rounds, their statistics, the machine they ran on, and how a result is printed."""

import argparse
import datetime
import json
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import numpy as np

from gpt.cli.command import report
from gpt.cli.config_options import write_output
from gpt.config import RunConfig
from gpt.extras.inspection.rendering.tables import Table, render_table
from gpt.system.progress import Report

PAUSE = 0.3
"""Seconds before each measurement, in which the threads of the previous one go to sleep."""
PACKAGES = ("torch", "transformers", "llama_cpp_python", "gpt")
Row = dict[str, Any]


def interleave(names: Sequence[str], rounds: int, report: Report) -> Iterator[tuple[int, str]]:
    """Yield (round, name) for every name in every round; odd rounds run backwards, so that drift affects all alike."""
    for number in range(rounds):
        report(f"round {number + 1} of {rounds}")
        for name in names if number % 2 == 0 else reversed(names):
            time.sleep(PAUSE)
            yield number, name


def summarize(values: Sequence[float]) -> Row:
    """Return mean, sample standard deviation (None for a single value), median, and 10th and 90th percentile."""
    low, median, high = np.percentile(values, (10, 50, 90)).tolist()
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "deviation": deviation, "median": median, "low": low, "high": high}


def ratios(baseline: Sequence[float], values: Sequence[float]) -> list[float]:
    """Divide `values` by `baseline` round by round, which cancels whatever slowed down a whole round."""
    return [value / base for base, value in zip(baseline, values, strict=True)]


def show_ratios(values: Sequence[float], form: str = ".2f") -> str:
    """Format numbers as `1.58 (1.15-1.67)`: the median, and the lowest and highest of several."""
    middle = f"{statistics.median(values):{form}}"
    return middle if len(values) == 1 else f"{middle} ({min(values):{form}}-{max(values):{form}})"


def make_table(title: str, rows: Mapping[str, Any], columns: Mapping[str, Callable[[Any], str]], note: str) -> Table:
    """Make a table with a line for each row, from the functions that format its columns."""
    cells = [(name, *(cell(row) for cell in columns.values())) for name, row in rows.items()]
    return Table(title, ("", *columns), cells, "<" + ">" * len(columns), note)


def describe(benchmark: str, arguments: argparse.Namespace, run: RunConfig | None = None) -> Row:
    """Return the beginning of every result; `run` chooses device and threads, None: the CPU and torch's default."""
    import torch

    from gpt.system.device import choose_device

    device, threads = ("cpu", None) if run is None else (str(choose_device(run.device)), run.threads)
    shared = {name: getattr(arguments, name) for name in ("config", "overrides") if hasattr(arguments, name)}
    threads = threads or torch.get_num_threads()
    return {"benchmark": benchmark, **describe_machine(device), "threads": threads, **shared}


def describe_machine(device: str = "cpu") -> Row:
    """Return date, machine and versions; `device` is the one that computes."""
    cpuinfo = Path("/proc/cpuinfo")
    name = re.search(r"^model name\s*: (.+)$", cpuinfo.read_text() if cpuinfo.exists() else "", re.MULTILINE)
    return {
        "date": datetime.date.today().isoformat(),
        "machine": {
            "class": processor_class(device),
            "cpu": name.group(1) if name else platform.processor() or platform.machine(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "system": f"{platform.system()} {platform.release()}",
            "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        },
        "versions": {
            "python": platform.python_version(),
            **{package.name: package.version for package in distributions() if package.name in PACKAGES},
        },
    }


def processor_class(device: str) -> str:
    """Return what figures belong to: `CUDA` and the card, or a class of `gpt.system.processor`, such as `AMX`.

    `AMX as AVX2` means that kernels were told to use fewer instructions than the processor has.
    """
    import torch

    from gpt.system.environment import read_settings
    from gpt.system.processor import supported_processors

    if device != "cpu":
        return f"CUDA {torch.cuda.get_device_name(device)}" if device.startswith("cuda") else device
    own, acts_as = supported_processors()[0].name, read_settings().processor
    return own if acts_as in (None, own) else f"{own} as {acts_as}"


def finish(arguments: argparse.Namespace, tables: Sequence[Table], result: Row, problems: Sequence[str] = ()) -> int:
    """Print tables and then the result, which begins as `describe` has it, as a line of JSON; write it to `--json`.

    Return 1 where there are problems, which are reported.
    """
    for table in tables:
        print(f"{table.title} [{result['machine']['class']}, {result['threads']} threads]")
        print(render_table(table.header, table.rows, table.align), table.note, sep="\n", end="\n\n")
    line = json.dumps(result)
    print(line, flush=True)
    if arguments.json is not None:
        write_output(arguments.json, f"{line}\n".encode())
    for problem in problems:
        report(problem)
    return 1 if problems else 0


def show(value: float | None, form: str, scale: float = 1) -> str:
    """Format a number that may be missing."""
    return "" if value is None else f"{value * scale:{form}}"
