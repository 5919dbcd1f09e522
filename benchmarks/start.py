"""`scripts/bench.py start`: seconds from the start of `sample.py` to the first character, beside importing torch."""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.options import check_counts, check_json
from benchmarks.output import describe, finish
from benchmarks.processes import environment, script_command
from benchmarks.spread import in_turns, ratios, show_ratios
from gpt.cli.common import add_command
from gpt.cli.tables import Table
from gpt.errors import ConfigError, GPTError

EXAMPLE = "python scripts/bench.py start --checkpoint runs/shakespeare"
TORCH, SAMPLE = "import torch", "sample.py"
NOTE = "Seconds: from the start of the process to its end, or to the first character of the text; medians."


def add_parser(subparsers: Any) -> None:
    """The options of this measurement."""
    parser = add_command(
        subparsers,
        "start",
        "Time a cold start of sample.py to the first character, and importing torch, in turns.",
        EXAMPLE,
    )
    parser.add_argument("--checkpoint", required=True, metavar="PATH", help="run or checkpoint folder")
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="turns of each (default: 7)")
    parser.add_argument("--json", metavar="FILE", help="write the last line there too")
    parser.set_defaults(run=run, config=None, overrides=[])


def run(arguments: argparse.Namespace) -> int:
    """A round that does not count, which compiles what is not compiled yet, then the others."""
    check_counts(arguments, "rounds")
    check_json(arguments)
    if not Path(arguments.checkpoint).is_dir():
        raise ConfigError(f"--checkpoint {arguments.checkpoint}: there is no such folder")
    sample = [*script_command("sample"), "--checkpoint", arguments.checkpoint, "--max-new-tokens", "1"]
    commands = {TORCH: [sys.executable, "-c", "import torch; print(1)"], SAMPLE: sample}
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for number, order in enumerate(in_turns(list(commands), arguments.rounds + 1)):
        for name in order:
            taken = seconds_to_first_byte(commands[name])
            if number:
                seconds[name].append(taken)

    import torch

    times = ratios(seconds[TORCH], seconds[SAMPLE])
    rows = [(name, f"{statistics.median(values):.2f}") for name, values in seconds.items()]
    table = Table(f"Cold start, {show_ratios(times)} times importing torch", ("", "seconds"), rows, "<>", NOTE)
    facts = describe("start", arguments, torch.get_num_threads())
    return finish(arguments, [table], {**facts, "seconds": seconds, "times": times})


def seconds_to_first_byte(command: Sequence[str]) -> float:
    """Wall time from the start of a process to the first byte of its output.

    Raises:
        GPTError: it ends without any.
    """
    start = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), bufsize=0
    ) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        taken = time.perf_counter() - start
        _, message = process.communicate()
    if not first or process.returncode != 0:
        raise GPTError(f"{' '.join(command)} failed: {message.decode(errors='replace').strip()[-300:]}")
    return taken
