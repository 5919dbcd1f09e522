"""`scripts/bench.py train busy`: a training step on a quiet machine, and while other processes take cores."""

import argparse
import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.options import add_measurement, check_common, check_counts
from benchmarks.output import describe, finish
from benchmarks.spread import PAUSE, in_turns, ratios, show_ratios
from benchmarks.step import add_turn_options, jobs_of_variants, warm_workers
from gpt.cli.common import report
from gpt.cli.tables import Table
from gpt.config import load_config

SPIN = "while True: pass"
NOTE = "ms: median step of all rounds. Times: busy over quiet, round by round: median, and lowest to highest round."


@dataclass
class Medians:
    """Milliseconds of a step, the median of each round.

    Attributes:
        blocks: native, compiled or eager, and the type of the matmuls.
        quiet: alone.
        busy: beside spinning processes.
    """

    blocks: str = ""
    quiet: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)


def add_parser(subparsers: Any) -> None:
    """The options of this measurement."""
    parser = add_measurement(
        subparsers,
        "busy",
        "Time one training step of several variants, alone and while other processes take cores.",
        "--config configs/shakespeare.yaml --variants native,torch,compiled",
    )
    add_turn_options(parser, "native,torch,compiled")
    parser.add_argument(
        "--spinning", type=int, default=1, metavar="N", help="other processes, a core each (default: 1)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """In every round, each variant takes a quiet turn, then a busy one."""
    check_common(arguments)
    check_counts(arguments, "warmup", "steps", "rounds", "spinning")
    loaded = load_config(Path(arguments.config), arguments.overrides)
    jobs = jobs_of_variants(arguments)

    import torch

    from gpt.device import choose_device

    threads = loaded.config.run.threads or torch.get_num_threads()
    facts = describe("train busy", arguments, threads, str(choose_device(loaded.config.run.device)))
    found = {job.name: Medians() for job in jobs}
    with contextlib.ExitStack() as stack:
        workers = warm_workers(jobs, stack)
        for number, order in enumerate(in_turns(list(workers), arguments.rounds), start=1):
            report(f"round {number} of {arguments.rounds}")
            for name in order:
                time.sleep(PAUSE)
                answer = workers[name].take_turn()
                found[name].blocks = f"{answer.blocks} {answer.dtype}"
                found[name].quiet.append(statistics.median(answer.milliseconds))
                with spinning(arguments.spinning):
                    found[name].busy.append(statistics.median(workers[name].take_turn().milliseconds))
    settings = {name: getattr(arguments, name) for name in ("warmup", "steps", "rounds", "spinning")}
    title = f"{arguments.config}: one step, alone and beside {arguments.spinning} spinning"
    return finish(arguments, [table_of(title, found)], {**facts, **settings, "variants": summary_of(found)})


@contextlib.contextmanager
def spinning(count: int) -> Iterator[None]:
    """Other processes that compute without end."""
    processes: Sequence[subprocess.Popen[bytes]] = []
    try:
        processes = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
        time.sleep(PAUSE)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def summary_of(found: Mapping[str, Medians]) -> dict[str, Any]:
    """For JSON: each variant by name."""
    return {
        name: {
            "blocks": one.blocks,
            "quiet_milliseconds": one.quiet,
            "busy_milliseconds": one.busy,
            "times": ratios(one.quiet, one.busy),
        }
        for name, one in found.items()
    }


def table_of(title: str, found: Mapping[str, Medians]) -> Table:
    """A line for each variant."""
    rows = [
        (
            name,
            one.blocks,
            f"{statistics.median(one.quiet):.1f}",
            f"{statistics.median(one.busy):.1f}",
            show_ratios(ratios(one.quiet, one.busy)),
        )
        for name, one in found.items()
    ]
    return Table(title, ("variant", "blocks", "quiet ms", "busy ms", "times"), rows, "<<>>>", NOTE)
