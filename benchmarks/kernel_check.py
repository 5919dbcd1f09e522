"""`scripts/bench.py check`: whether a kernel is ten times slower than it should be, on whatever machine this is."""

import argparse
import time
from collections.abc import Callable
from typing import Any

from benchmarks.cli_options import add_measurement
from benchmarks.measure import Row, describe, finish, make_table
from gpt.cli.command import report

SECONDS, TRIES = 0.1, 3
"""At least so long and so often each side runs, in one thread; the best time counts, whatever else the machine does."""
NOTE = "us: fastest of many calls in one thread. torch: its operators in float32. A kernel above its limit fails."
COLUMNS = {
    "us": lambda row: f"{row['seconds'] * 1e6:,.0f}",
    "torch us": lambda row: f"{row['reference_seconds'] * 1e6:,.0f}",
    "times": lambda row: f"{row['ratio']:.2f}",
    "limit": lambda row: f"{row['limit']:g}",
    "": lambda row: "too slow" if row["fails"] else "",
}


def add_parser(subparsers: Any) -> None:
    summary = "Fail if a native kernel is far slower than torch's own operators on this machine."
    add_measurement(subparsers, "check", summary, "").set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Return 1 where a kernel fails; its name is on standard error."""
    import torch

    from benchmarks.kernel_cases import all_cases

    torch.set_num_threads(1)
    facts, rows = describe("check", arguments), {}
    report("timing each kernel, at least 0.2 s each")
    for case in all_cases(report):
        reference, seconds = best_seconds(case.reference), best_seconds(case.ours)
        row: Row = {"seconds": seconds, "reference_seconds": reference, "ratio": seconds / reference}
        rows[case.name] = {**row, "limit": case.limit, "fails": row["ratio"] > case.limit}
    slow = [
        f"too slow: {name} takes {row['ratio']:.1f} times as long as torch's operators, limit {row['limit']:g}"
        for name, row in rows.items()
        if row["fails"]
    ]
    table = make_table("Kernels beside torch", rows, COLUMNS, NOTE)
    return finish(arguments, [table], {**facts, "kernels": rows}, slow)


def best_seconds(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the time of the fastest of at least `TRIES` calls in at least `SECONDS`, after one that does not count."""
    call()
    best, tries, end = float("inf"), 0, clock() + SECONDS
    while tries < TRIES or clock() < end:
        start = clock()
        call()
        best, tries = min(best, clock() - start), tries + 1
    return best
