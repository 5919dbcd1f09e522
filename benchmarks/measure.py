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
    """Yield (round, name) for every name in every round.

    Every second round runs backwards, so that a drift of the machine's speed affects all alike.
    """
    for number in range(rounds):
        report(f"round {number + 1} of {rounds}")
        order = list(names) if number % 2 == 0 else list(reversed(names))
        for name in order:
            time.sleep(PAUSE)
            yield number, name


def summarize(values: Sequence[float]) -> Row:
    """Return mean, sample standard deviation (None for a single value), median, and 10th and 90th
    percentile.
    """
    low, median, high = np.percentile(values, (10, 50, 90)).tolist()
    return {
        "mean": statistics.fmean(values),
        "deviation": statistics.stdev(values) if len(values) > 1 else None,
        "median": median,
        "low": low,
        "high": high,
    }


def ratios(baseline: Sequence[float], values: Sequence[float]) -> list[float]:
    """Divide `values` by `baseline` round by round, which cancels what slows down a round."""
    return [value / base for base, value in zip(baseline, values, strict=True)]


def show_ratios(values: Sequence[float], form: str = ".2f") -> str:
    """Format numbers as `1.58 (1.15-1.67)`: the median, and the lowest and highest of several."""
    middle = f"{statistics.median(values):{form}}"
    return middle if len(values) == 1 else f"{middle} ({min(values):{form}}-{max(values):{form}})"


def make_table(
    title: str, rows: Mapping[str, Any], columns: Mapping[str, Callable[[Any], str]], note: str
) -> Table:
    """Return a table with a line for each row.

    Each of the columns is a function that formats a cell of a row.
    """
    cells = []
    for name, row in rows.items():
        cells.append((name, *[format_cell(row) for format_cell in columns.values()]))
    align = "<" + ">" * len(columns)
    return Table(title, ("", *columns), cells, align, note)


def describe(benchmark: str, arguments: argparse.Namespace, run: RunConfig | None = None) -> Row:
    """Return what every result begins with.

    Args:
        run: chooses the device and the number of threads; None for the CPU and torch's default.
    """
    import torch

    from gpt.system.device import choose_device

    device = "cpu"
    threads = torch.get_num_threads()
    if run is not None:
        device = str(choose_device(run.device))
        threads = run.threads or threads
    facts = {"benchmark": benchmark, **describe_machine(device), "threads": threads}
    for name in ("config", "overrides"):
        if hasattr(arguments, name):
            facts[name] = getattr(arguments, name)
    return facts


def describe_machine(device: str = "cpu") -> Row:
    """Return date, machine and versions; `device` is the one that computes."""
    versions = {"python": platform.python_version()}
    for package in distributions():
        if package.name in PACKAGES:
            versions[package.name] = package.version
    return {
        "date": datetime.date.today().isoformat(),
        "machine": {
            "class": processor_class(device),
            "cpu": _cpu_name(),
            "cores": _num_cores(),
            "system": f"{platform.system()} {platform.release()}",
            "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        },
        "versions": versions,
    }


def _cpu_name() -> str:
    """Return the name of the processor, which on Linux only /proc/cpuinfo has in full."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        match = re.search(r"^model name\s*: (.+)$", cpuinfo.read_text(), re.MULTILINE)
        if match:
            return match.group(1)
    return platform.processor() or platform.machine()


def _num_cores() -> int | None:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def processor_class(device: str) -> str:
    """Return the class of hardware that figures belong to.

    That is `CUDA` and the name of the card, or a class of `gpt.system.processor`, such as `AMX`.
    `AMX as AVX2` means that kernels were told to use fewer instructions than the processor has.
    """
    import torch

    from gpt.system.environment import read_settings
    from gpt.system.processor import supported_processors

    if device.startswith("cuda"):
        return f"CUDA {torch.cuda.get_device_name(device)}"
    if device != "cpu":
        return device
    own = supported_processors()[0].name
    acts_as = read_settings().processor
    if acts_as is None or acts_as == own:
        return own
    return f"{own} as {acts_as}"


def finish(
    arguments: argparse.Namespace,
    tables: Sequence[Table],
    result: Row,
    problems: Sequence[str] = (),
) -> int:
    """Print tables, and then the result as a line of JSON, which is also written to `--json`.

    Args:
        result: what `describe` returns, and more.
        problems: lines to report.

    Return 0, or 1 if there are problems.
    """
    hardware = f"[{result['machine']['class']}, {result['threads']} threads]"
    for table in tables:
        print(f"{table.title} {hardware}")
        print(render_table(table.header, table.rows, table.align))
        print(table.note, end="\n\n")
    line = json.dumps(result)
    print(line, flush=True)
    if arguments.json is not None:
        write_output(arguments.json, f"{line}\n".encode())
    for problem in problems:
        report(problem)
    return 1 if problems else 0


def show(value: float | None, form: str, scale: float = 1) -> str:
    """Format `scale` times a number; one that is missing is empty."""
    return "" if value is None else f"{value * scale:{form}}"
