"""`scripts/bench.py train step`: milliseconds of a training step, variants and peers in turns."""

import argparse
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.options import add_measurement, add_peer_options, check_common, check_counts, check_peers
from benchmarks.output import describe, finish
from benchmarks.spread import PAUSE, in_turns
from benchmarks.step_report import StepSetting, rates_table, summary_of, table_of
from benchmarks.workers import Answer, Job, Worker
from gpt.cli.common import report
from gpt.config import Config, load_config
from gpt.errors import ConfigError
from gpt.settings import read_settings

if TYPE_CHECKING:
    from gpt.device import Compute

EAGER = ("run.kernels=torch", "run.compile=false")
VARIANTS: dict[str, tuple[str, ...]] = {
    "config": (),
    "native": ("run.kernels=native",),
    "torch": EAGER,
    "compiled": ("run.kernels=torch", "run.compile=true"),
    "float32": (*EAGER, "run.dtype=float32"),
}
"""Overrides by name; `config` is the run as its file has it."""


def add_parser(subparsers: Any) -> None:
    """The options of this measurement."""
    parser = add_measurement(
        subparsers,
        "step",
        "Time one training step of several variants in turns, and its memory.",
        "--config configs/shakespeare.yaml --variants native,torch,compiled,float32 --hf --nanogpt ../nanoGPT",
    )
    add_turn_options(parser, "config")
    add_peer_options(parser)
    parser.add_argument(
        "--matmul-sizes",
        type=int,
        nargs="+",
        default=[512, 1024, 2048, 4096],
        metavar="N",
        help="of the square products that the machine is rated by; the fastest counts (default: 512 1024 2048 4096)",
    )
    parser.set_defaults(run=run)


def add_turn_options(parser: argparse.ArgumentParser, variants: str) -> None:
    """Which variants of a step, by default `variants`, and how often each is timed."""
    parser.add_argument(
        "--variants",
        default=variants,
        metavar="A,B,...",
        help=f"of {', '.join(VARIANTS)}; one may stand twice, to see the noise (default: {variants})",
    )
    parser.add_argument("--warmup", type=int, default=10, metavar="N", help="steps that do not count (default: 10)")
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="steps of a turn (default: 20)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="turns of each (default: 5)")


def run(arguments: argparse.Namespace) -> int:
    """Start everything, then let one after the other take its turns."""
    check_common(arguments)
    check_counts(arguments, "warmup", "steps", "rounds")
    check_peers(arguments.hf, arguments.nanogpt)
    if min(arguments.matmul_sizes) < 1:
        raise ConfigError(f"--matmul-sizes has {min(arguments.matmul_sizes)}, expected at least 1")
    loaded = load_config(Path(arguments.config), arguments.overrides)
    variants = jobs_of_variants(arguments)

    import torch

    from gpt.data import prepare
    from gpt.training.session import resolve

    config = resolve(loaded, prepare(loaded.config.data, read_settings(), report))
    compute, rates = _measure_machine(config, arguments.matmul_sizes)
    facts = describe("train step", arguments, torch.get_num_threads(), str(compute.device))
    jobs = [*variants, *jobs_of_peers(arguments, compute.dtype == torch.bfloat16)]
    answers = _take_turns(jobs, arguments.rounds)
    setting = StepSetting(config, rates)
    settings = {name: getattr(arguments, name) for name in ("warmup", "steps", "rounds")}
    tables = [table_of(setting, arguments.config, answers), rates_table(rates)]
    return finish(arguments, tables, {**facts, **settings, **summary_of(setting, answers)})


def jobs_of_variants(arguments: argparse.Namespace) -> list[Job]:
    """A process for each name; the second of the same name gets a number.

    Raises:
        ConfigError: there is no such variant.
    """
    jobs: list[Job] = []
    names = [name.strip() for name in arguments.variants.split(",")]
    for place, name in enumerate(names):
        if name not in VARIANTS:
            raise ConfigError(f"--variants: there is no {name!r}, only {', '.join(VARIANTS)}")
        earlier = names[:place].count(name)
        jobs.append(
            Job(
                f"{name} {earlier + 1}" if earlier else name,
                "gpt",
                arguments.config,
                [*arguments.overrides, *VARIANTS[name]],
                arguments.warmup,
                arguments.steps,
            )
        )
    return jobs


def jobs_of_peers(arguments: argparse.Namespace, bfloat16: bool) -> list[Job]:
    """A process for each peer; `bfloat16`: whether this package computes in it here."""
    common = (arguments.config, arguments.overrides, arguments.warmup, arguments.steps)
    jobs = []
    if arguments.hf:
        kind = "bfloat16" if bfloat16 else "float32"
        jobs.append(Job(f"Hugging Face {kind}", "hugging_face", *common, dtype=kind))
    if arguments.nanogpt is not None:
        checkout = str(arguments.nanogpt.absolute())
        jobs += [
            Job(f"nanoGPT {kind}", "nanogpt", *common, dtype=kind, checkout=checkout)
            for kind in ("float32", "bfloat16")
        ]
    return jobs


def _measure_machine(config: Config, sizes: list[int]) -> "tuple[Compute, dict[str, dict[int, float]]]":
    """What this package would train on and in, and FLOP/s by type and size."""
    import torch

    from gpt.accounting.machine import measure_matmul_rate
    from gpt.device import choose_compute

    compute = choose_compute(config.run.model_copy(update={"deterministic": False}), report)
    rates = {
        str(dtype).removeprefix("torch."): {size: measure_matmul_rate(compute.device, dtype, size) for size in sizes}
        for dtype in dict.fromkeys((compute.dtype, torch.bfloat16, torch.float32))
    }
    return compute, rates


def _take_turns(jobs: list[Job], rounds: int) -> dict[str, list[Answer]]:
    """Answers of every process, one for each round."""
    answers: dict[str, list[Answer]] = {job.name: [] for job in jobs}
    with ExitStack() as stack:
        workers = warm_workers(jobs, stack)
        for number, order in enumerate(in_turns(list(workers), rounds), start=1):
            report(f"round {number} of {rounds}")
            for name in order:
                time.sleep(PAUSE)
                answers[name].append(workers[name].take_turn())
    return answers


def warm_workers(jobs: list[Job], stack: ExitStack) -> dict[str, Worker]:
    """A process for each job by its name, ready for its first turn; `stack` ends them."""
    workers = {}
    for job in jobs:
        report(f"warming up {job.name}")
        workers[job.name] = stack.enter_context(Worker(job))
    return workers
