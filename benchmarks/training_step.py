"""`scripts/bench.py train step`: milliseconds and memory of a training step, beside nanoGPT."""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.cli_options import (
    add_count,
    add_measurement,
    add_nanogpt,
    add_variants,
    check_overrides,
)
from benchmarks.measure import (
    Row,
    describe,
    finish,
    interleave,
    make_table,
    ratios,
    show_ratios,
    summarize,
)
from benchmarks.processes import Ask, json_process
from gpt.cli.command import report
from gpt.cli.tables import human_bytes, human_count
from gpt.config import Config, ModelConfig
from gpt.config.plugins import plugin_options
from gpt.config.sources import load_config
from gpt.extras.inspection.rendering.tables import Table
from gpt.system.environment import Launch, read_settings

VARIANTS: dict[str, tuple[str, ...]] = {
    "config": (),
    "native": ("run.kernels=native",),
    "torch": ("run.kernels=torch",),
    "compiled": ("run.kernels=torch", "run.compile=true"),
    "float32": ("run.kernels=torch", "run.dtype=float32"),
}
"""Overrides of each variant; `config` is the run as its file has it."""
NOTE = (
    "ms: milliseconds of the median step, batches included, and 10th to 90th percentile. Of\n"
    "peak: FLOP/s of the model's matmuls over the best rate measured here in the step's own\n"
    "dtype, and in float32. Memory: peak of the whole process. Ratio: time over that of the\n"
    "first row, median of the rounds (lowest-highest)."
)
COLUMNS = {
    "blocks": lambda row: f"{row['blocks']} {row['dtype']}",
    "ms": lambda row: f"{row['milliseconds']['median']:.1f}",
    "10-90%": lambda row: f"{row['milliseconds']['low']:.1f}-{row['milliseconds']['high']:.1f}",
    "tokens/s": lambda row: f"{row['tokens_per_second']:,.0f}",
    "of peak": lambda row: f"{row['share_of_matmul_rate']:.1%}",
    "of fp32 peak": lambda row: f"{row['share_of_float32_rate']:.1%}",
    "memory": lambda row: human_bytes(row["peak_bytes"]),
    "ratio": lambda row: show_ratios(row["times_slower"]),
}


def add_parsers(subparsers: Any) -> None:
    """Add the command."""
    parser = add_measurement(
        subparsers,
        "train step",
        "Time a training step of several variants, and of nanoGPT, in interleaved rounds, and "
        "measure its memory.",
        "--config configs/shakespeare.yaml --variants native,torch,compiled,float32 "
        "--nanogpt ../nanoGPT",
    )
    add_nanogpt(parser)
    add_count(
        parser,
        "--matmul-sizes",
        [512, 1024, 2048, 4096],
        "of the square matmuls that give the machine's peak",
    )
    add_variants(parser, VARIANTS, "config")
    add_count(parser, "--warmup", 10, "steps that do not count")
    add_count(parser, "--steps", 20, "steps of each variant in a round")
    add_count(parser, "--rounds", 5, "rounds")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Start all processes, then measure them in interleaved rounds."""
    check_overrides(arguments)
    loaded = load_config(Path(arguments.config), arguments.overrides)

    from gpt.data.preparation import prepare
    from gpt.training.train import fill_in

    dataset = prepare(loaded.config.data, read_settings(), report)
    config = fill_in(loaded.named_config, dataset)
    facts = describe("train step", arguments, config.run)
    rates = measure_rates(config, arguments.matmul_sizes)
    answers: dict[str, list[Row]] = {}
    with ExitStack() as stack:
        jobs = jobs_of(arguments)
        workers = start_workers(jobs, arguments, stack)
        for _, name in interleave(list(workers), arguments.rounds, report):
            answers.setdefault(name, []).append(workers[name]())
    rows: dict[str, Row] = {}
    for name, rounds in answers.items():
        is_peer = jobs[name]["trainer"] != "gpt"
        rows[name] = row_of(config, rates, is_peer, rounds)
    baseline = next(iter(rows))
    for row in rows.values():
        row["times_slower"] = ratios(rows[baseline]["round_medians"], row["round_medians"])
    tokens = tokens_of(config)
    flops = human_count(step_flops(config, False), "FLOP")
    title = f"{arguments.config}: one step, {tokens:,} tokens, {flops}"
    tables = [make_table(title, rows, COLUMNS, NOTE), _rates_table(rates, arguments.matmul_sizes)]
    settings = {name: getattr(arguments, name) for name in ("warmup", "steps", "rounds")}
    result = {
        **facts,
        **settings,
        "tokens_per_step": tokens,
        "matmul_flops_per_second": rates,
        "baseline": baseline,
        "variants": rows,
    }
    return finish(arguments, tables, result)


def _rates_table(rates: Mapping[str, Mapping[int, float]], sizes: Sequence[int]) -> Table:
    """Return a table of the rates of matmuls, with a column for each size."""

    def column(size: int) -> Callable[[Mapping[int, float]], str]:
        return lambda row: human_count(row[size], "FLOP/s")

    columns = {f"{size:,}": column(size) for size in sizes}
    return make_table("Square matmuls by size", rates, columns, "")


def measure_rates(config: Config, sizes: Sequence[int]) -> dict[str, dict[int, float]]:
    """Measure FLOP/s of square matmuls by dtype and size; the first dtype is that of the run."""
    import torch

    from gpt.system.device import choose_compute, use_threads
    from gpt.system.machine import measure_matmul_rate

    report("measuring the rate of matmuls")
    use_threads(config.run.threads, Launch())
    compute = choose_compute(config.run.device, config.run.dtype, report)
    rates = {}
    for dtype in dict.fromkeys((compute.dtype, torch.bfloat16, torch.float32)):  # each once
        name = str(dtype).removeprefix("torch.")
        rates[name] = {size: measure_matmul_rate(compute.device, dtype, size) for size in sizes}
    return rates


def jobs_of(arguments: argparse.Namespace) -> dict[str, Row]:
    """Return a worker's job for each variant, and for nanoGPT in two dtypes."""
    jobs: dict[str, Row] = {}
    for name in arguments.variants:
        # a variant beside itself shows how large the noise is
        title = f"{name}, again" if name in jobs else name
        overrides = [*arguments.overrides, *VARIANTS[name]]
        jobs[title] = {"trainer": "gpt", "overrides": overrides}
    if arguments.nanogpt:
        for dtype in ("float32", "bfloat16"):
            jobs[f"nanoGPT {dtype}"] = {
                "trainer": "nanogpt",
                "dtype": dtype,
                "overrides": arguments.overrides,
                "checkout": str(arguments.nanogpt),
            }
    return jobs


def start_workers(
    jobs: Mapping[str, Row], arguments: argparse.Namespace, stack: ExitStack
) -> dict[str, Ask]:
    """Start a process for each job and wait for its warm-up; `stack` ends them."""
    shared = {name: getattr(arguments, name) for name in ("config", "warmup", "steps")}
    workers = {}
    for name, job in jobs.items():
        report(f"warming up {name}")
        words = [json.dumps({**job, **shared}), *plugin_options()]
        command = [sys.executable, "-m", "benchmarks.training_worker", *words]
        ask = stack.enter_context(json_process(name, command))
        ask()  # the first answer comes after the warm-up
        workers[name] = ask
    return workers


def row_of(
    config: Config,
    rates: Mapping[str, Mapping[int, float]],
    is_peer: bool,
    rounds: Sequence[Row],
) -> Row:
    """Return what a process has answered, once for each round, for JSON."""
    last = rounds[-1]
    of_rounds = [answer["milliseconds"] for answer in rounds]
    milliseconds = summarize([*chain.from_iterable(of_rounds)])
    flops = step_flops(config, is_peer)
    flops_per_second = flops / (milliseconds["median"] / 1000)
    return {
        **{key: last[key] for key in ("dtype", "blocks", "parameters", "peak_bytes")},
        "milliseconds": milliseconds,
        "round_medians": [statistics.median(values) for values in of_rounds],
        "tokens_per_second": tokens_of(config) / (milliseconds["median"] / 1000),
        "model_flops": flops,
        "share_of_matmul_rate": flops_per_second / max(rates[last["dtype"]].values()),
        "share_of_float32_rate": flops_per_second / max(rates["float32"].values()),
    }


def tokens_of(config: Config) -> int:
    """Return the tokens of a training step."""
    return config.train.batch_size * config.train.grad_accum_steps * config.model.block_size


def step_flops(config: Config, is_peer: bool) -> int:
    """Return the model FLOPs of a step; nanoGPT has the same shape, but GPT-2's architecture."""
    from gpt.model.flops import training_flops

    model = config.model
    if is_peer:
        keys = ("n_layer", "n_head", "n_embd", "block_size", "vocab_size", "dropout")
        model = ModelConfig(**{key: getattr(model, key) for key in keys})
    return training_flops(model, tokens_of(config) // model.block_size, model.block_size)
