"""`scripts/bench.py train step` and `train busy`: milliseconds and memory of a training step, beside peers."""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import PAUSE, Row, describe, finish, interleave, make_table, ratios, show_ratios, summarize
from benchmarks.options import (
    add_count,
    add_counts,
    add_measurement,
    add_peers,
    add_variants,
    check_hugging_face,
    check_overrides,
)
from benchmarks.processes import Ask, json_process
from gpt.cli.command import report
from gpt.cli.tables import human_bytes, human_count
from gpt.config import Config, ModelConfig, load_config
from gpt.environment import read_settings

EAGER = ("run.kernels=torch", "run.compile=false")
VARIANTS: dict[str, tuple[str, ...]] = {
    "config": (),
    "native": ("run.kernels=native",),
    "torch": EAGER,
    "compiled": ("run.kernels=torch", "run.compile=true"),
    "float32": (*EAGER, "run.dtype=float32"),
}
"""Overrides by name; `config` is the run as its file has it."""
SPIN = "while True: pass"
NOTE = (
    "ms: median step, batches included, and 10th to 90th percentile. Of peak: FLOP/s of the model's matmuls over the\n"
    "best measured rate in the step's own type, and in float32. Memory: peak of the whole process. Times: over the\n"
    "first row, median of the rounds, and lowest to highest."
)
COLUMNS = {
    "blocks": lambda row: f"{row['blocks']} {row['dtype']}",
    "ms": lambda row: f"{row['milliseconds']['median']:.1f}",
    "10-90%": lambda row: f"{row['milliseconds']['low']:.1f}-{row['milliseconds']['high']:.1f}",
    "tokens/s": lambda row: f"{row['tokens_per_second']:,.0f}",
    "of peak": lambda row: f"{row['share_of_matmul_rate']:.1%}",
    "of fp32 peak": lambda row: f"{row['share_of_float32_rate']:.1%}",
    "memory": lambda row: human_bytes(row["peak_bytes"]),
    "times": lambda row: show_ratios(row["times_slower"]),
}
BUSY_NOTE = "ms: median step of all rounds. Times: busy over quiet, median of the rounds, and lowest to highest."
BUSY_COLUMNS = {
    "blocks": lambda row: row["blocks"],
    "quiet ms": lambda row: f"{statistics.median(row['quiet_milliseconds']):.1f}",
    "busy ms": lambda row: f"{statistics.median(row['busy_milliseconds']):.1f}",
    "times": lambda row: show_ratios(row["times"]),
}


def add_parsers(subparsers: Any) -> None:
    """Add the options of both measurements."""
    summary = "Time a training step of several variants and peers in interleaved rounds, and measure its memory."
    names = "--config configs/shakespeare.yaml --variants native,torch,compiled"
    step = add_measurement(subparsers, "train step", summary, f"{names},float32 --hf --nanogpt ../nanoGPT")
    add_peers(step, "GPT-2 under transformers.Trainer")
    sizes = "of the square matmuls that give the machine's peak; the best counts"
    add_counts(step, "--matmul-sizes", [512, 1024, 2048, 4096], sizes)
    summary = "Time a training step of several variants, alone and while other processes take cores."
    busy = add_measurement(subparsers, "train busy", summary, names)
    add_count(busy, "--spinning", 1, "other processes, each of which keeps a core busy")
    for parser, default, run in ((step, "config", run_step), (busy, "native,torch,compiled", run_busy)):
        add_variants(parser, VARIANTS, default)
        add_count(parser, "--warmup", 10, "steps that do not count")
        add_count(parser, "--steps", 20, "steps of each variant in a round")
        add_count(parser, "--rounds", 5, "rounds")
        parser.set_defaults(run=run)


def run_step(arguments: argparse.Namespace) -> int:
    """Start all processes, then measure them in interleaved rounds."""
    check_overrides(arguments)
    check_hugging_face(arguments.hf)
    loaded = load_config(Path(arguments.config), arguments.overrides)

    from gpt.data import prepare
    from gpt.training.setup import resolve

    config = resolve(loaded, prepare(loaded.config.data, read_settings(), report))
    facts, rates = describe("train step", arguments, config.run), measure_rates(config, arguments.matmul_sizes)
    answers: dict[str, list[Row]] = {}
    with contextlib.ExitStack() as stack:
        jobs = {**jobs_of_variants(arguments), **jobs_of_peers(arguments, next(iter(rates)))}
        workers = start_workers(jobs, arguments, stack)
        for _, name in interleave(list(workers), arguments.rounds, report):
            answers.setdefault(name, []).append(workers[name]())
    rows = {name: row_of(config, rates, jobs[name]["trainer"] != "gpt", turns) for name, turns in answers.items()}
    baseline = next(iter(rows))
    for row in rows.values():
        row["times_slower"] = ratios(rows[baseline]["round_medians"], row["round_medians"])
    tokens = tokens_of(config)
    title = f"{arguments.config}: one step, {tokens:,} tokens, {human_count(step_flops(config, False), 'FLOP')}"
    columns = {f"{n:,}": lambda row, n=n: human_count(row[n], "FLOP/s") for n in arguments.matmul_sizes}
    tables = [make_table(title, rows, COLUMNS, NOTE), make_table("Square matmuls by size", rates, columns, "")]
    settings = {name: getattr(arguments, name) for name in ("warmup", "steps", "rounds")}
    result = {"tokens_per_step": tokens, "matmul_flops_per_second": rates, "baseline": baseline, "variants": rows}
    return finish(arguments, tables, {**facts, **settings, **result})


def run_busy(arguments: argparse.Namespace) -> int:
    """Measure each variant in every round, first alone, then beside spinning processes."""
    check_overrides(arguments)
    facts = describe("train busy", arguments, load_config(Path(arguments.config), arguments.overrides).config.run)
    jobs = jobs_of_variants(arguments)
    rows: dict[str, Row] = {name: {"blocks": "", "quiet_milliseconds": [], "busy_milliseconds": []} for name in jobs}
    with contextlib.ExitStack() as stack:
        workers = start_workers(jobs, arguments, stack)
        for _, name in interleave(list(workers), arguments.rounds, report):
            row, answer = rows[name], workers[name]()
            row["blocks"] = f"{answer['blocks']} {answer['dtype']}"
            row["quiet_milliseconds"].append(statistics.median(answer["milliseconds"]))
            with spinning(arguments.spinning):
                row["busy_milliseconds"].append(statistics.median(workers[name]()["milliseconds"]))
    for row in rows.values():
        row["times"] = ratios(row["quiet_milliseconds"], row["busy_milliseconds"])
    settings = {name: getattr(arguments, name) for name in ("warmup", "steps", "rounds", "spinning")}
    title = f"{arguments.config}: one step, alone and beside spinning processes ({arguments.spinning})"
    table = make_table(title, rows, BUSY_COLUMNS, BUSY_NOTE)
    return finish(arguments, [table], {**facts, **settings, "variants": rows})


@contextlib.contextmanager
def spinning(count: int) -> Iterator[None]:
    """Keep some cores busy with other processes."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", SPIN]))
            stack.callback(process.kill)
        time.sleep(PAUSE)
        yield


def measure_rates(config: Config, sizes: Sequence[int]) -> dict[str, dict[int, float]]:
    """Measure FLOP/s of square matmuls by type and size; the first type is the one that the run computes in."""
    import torch

    from gpt.accounting.machine import measure_matmul_rate
    from gpt.device import choose_compute

    report("measuring the rate of matmuls")
    compute = choose_compute(config.run.model_copy(update={"deterministic": False}), report)
    types = dict.fromkeys((compute.dtype, torch.bfloat16, torch.float32))
    return {str(t).removeprefix("torch."): {n: measure_matmul_rate(compute.device, t, n) for n in sizes} for t in types}


def jobs_of_variants(arguments: argparse.Namespace) -> dict[str, Row]:
    """Return the job of a worker for each variant; the second of the same name gets a number."""
    jobs: dict[str, Row] = {}
    for name in arguments.variants:
        overrides = [*arguments.overrides, *VARIANTS[name]]
        earlier = sum(other.startswith(f"{name} ") or other == name for other in jobs)
        jobs[f"{name} {earlier + 1}" if earlier else name] = {"trainer": "gpt", "overrides": overrides}
    return jobs


def jobs_of_peers(arguments: argparse.Namespace, dtype: str) -> dict[str, Row]:
    """Return the jobs of the peers: Hugging Face in the type that this package computes in, nanoGPT in two."""
    peers = [("Hugging Face", "hugging_face", "bfloat16" if dtype == "bfloat16" else "float32")] * arguments.hf
    peers += [("nanoGPT", "nanogpt", dtype) for dtype in ("float32", "bfloat16") if arguments.nanogpt]
    shared = {"overrides": arguments.overrides, "checkout": str(arguments.nanogpt)}
    return {f"{name} {dtype}": {"trainer": trainer, "dtype": dtype, **shared} for name, trainer, dtype in peers}


def start_workers(
    jobs: Mapping[str, Row], arguments: argparse.Namespace, stack: contextlib.ExitStack
) -> dict[str, Ask]:
    """Start a process for each job and wait for its warm-up; `stack` ends them."""
    workers, shared = {}, {name: getattr(arguments, name) for name in ("config", "warmup", "steps")}
    for name, job in jobs.items():
        report(f"warming up {name}")
        command = [sys.executable, "-m", "benchmarks.worker", json.dumps({**job, **shared})]
        workers[name] = stack.enter_context(json_process(name, command))
        workers[name]()
    return workers


def row_of(config: Config, rates: Mapping[str, Mapping[int, float]], is_peer: bool, turns: Sequence[Row]) -> Row:
    """Return what a process answered, a turn for each round, for JSON."""
    last, spread = turns[-1], summarize([one for turn in turns for one in turn["milliseconds"]])
    seconds, flops = spread["median"] / 1000, step_flops(config, is_peer)
    return {
        **{key: last[key] for key in ("dtype", "blocks", "parameters", "peak_bytes")},
        "milliseconds": spread,
        "round_medians": [statistics.median(turn["milliseconds"]) for turn in turns],
        "tokens_per_second": tokens_of(config) / seconds,
        "model_flops": flops,
        "share_of_matmul_rate": flops / seconds / max(rates[last["dtype"]].values()),
        "share_of_float32_rate": flops / seconds / max(rates["float32"].values()),
    }


def tokens_of(config: Config) -> int:
    """Return the tokens of a step."""
    return config.train.batch_size * config.train.grad_accum_steps * config.model.block_size


def step_flops(config: Config, is_peer: bool) -> int:
    """Return the model FLOPs of a step; a peer has the same shape, but GPT-2's parts."""
    from gpt.accounting.flops import training_flops

    keys = ("n_layer", "n_head", "n_embd", "block_size", "vocab_size", "dropout")
    model = ModelConfig(**{key: getattr(config.model, key) for key in keys}) if is_peer else config.model
    return training_flops(model, tokens_of(config) // model.block_size, model.block_size)
