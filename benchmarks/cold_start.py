"""`scripts/bench.py start`: seconds from the start of `sample.py` to the first character, beside importing torch."""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cli_options import add_count, add_measurement
from benchmarks.measure import describe, finish, interleave, make_table, ratios, show_ratios
from benchmarks.processes import environment, failure, script_command
from gpt.cli.command import report
from gpt.errors import ConfigError, GPTError

NOTE = "Seconds: median from the start of the process to the first byte of its output."
COLUMNS = {"seconds": lambda row: f"{statistics.median(row['seconds']):.2f}"}


def add_parser(subparsers: Any) -> None:
    summary = "Time a cold start of sample.py to the first character, and importing torch, in interleaved rounds."
    parser = add_measurement(subparsers, "start", summary, "--checkpoint runs/shakespeare")
    parser.add_argument("--checkpoint", required=True, metavar="PATH", help="run or checkpoint folder")
    add_count(parser, "--rounds", 7, "rounds")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, after a round that does not count, which compiles what is not compiled yet."""
    if not Path(arguments.checkpoint).is_dir():
        raise ConfigError(f"--checkpoint {arguments.checkpoint}: there is no such folder")
    sample = [*script_command("sample"), "--checkpoint", arguments.checkpoint, "--max-new-tokens", "1"]
    commands = {"import torch": [sys.executable, "-c", "import torch; print(1)"], "sample.py": sample}
    facts, seconds = describe("start", arguments), {name: list[float]() for name in commands}
    for number, name in interleave(list(commands), arguments.rounds + 1, report):
        taken = seconds_to_first_byte(commands[name])
        seconds[name] += [taken] if number else []
    times = ratios(*seconds.values())
    rows = {name: {"seconds": values} for name, values in seconds.items()}
    table = make_table(f"Cold start, {show_ratios(times)} times importing torch", rows, COLUMNS, NOTE)
    return finish(arguments, [table], {**facts, "seconds": seconds, "times": times})


def seconds_to_first_byte(command: Sequence[str]) -> float:
    """Return the wall time from the start of a process to the first byte of its output; raise GPTError if it fails."""
    start, pipe = time.perf_counter(), subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, env=environment(), bufsize=0) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        taken = time.perf_counter() - start
        _, message = process.communicate()
    if not first or process.returncode != 0:
        raise GPTError(failure(command, process.returncode, message.decode(errors="replace")))
    return taken
