"""`scripts/bench.py train recipe` and `train race`: seconds and loss of whole training processes."""

import argparse
import json
import re
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.cli_options import add_count, add_measurement, add_nanogpt, check_overrides
from benchmarks.measure import Row, describe, finish, interleave, make_table, ratios, show, show_ratios, summarize
from benchmarks.processes import Line, script_command, time_process
from gpt.cli.command import report
from gpt.cli.tables import human_bytes
from gpt.config.sources import load_config
from gpt.system.environment import read_settings

if TYPE_CHECKING:
    from torch import nn

    from gpt.data.dataset import Dataset

NAME = "bench"
NANOGPT_CONFIG = "config/train_shakespeare_char.py"
NANOGPT_FILES = ("model.py", "train.py", NANOGPT_CONFIG, "data/shakespeare_char/prepare.py")
README_OPTIONS = (
    "--device=cpu --compile=False --eval_iters=20 --log_interval=1 --block_size=64 --batch_size=12 --n_layer=4 "
    "--n_head=4 --n_embd=128 --max_iters=2000 --lr_decay_iters=2000 --dropout=0.0"
)
"""Word for word what nanoGPT's README gives for a CPU; on a GPU it trains by its configuration alone."""
NANOGPT_WINDOWS = {"cpu": 64}
GPU_WINDOW = 256
NOTE = (
    "s: seconds from the start of the process to its end, with cold compile caches and prepared data. Loss: nats per\n"
    "token over the whole validation split in float32, in windows of the model's own length and, beside nanoGPT, of a\n"
    "length that both models can read. Ours is of the last weights, nanoGPT's of those that it estimates best. To its\n"
    "best: until the trainer's own estimate was first as low as nanoGPT's lowest."
)
MEASURED = ("seconds", "loss", "common_loss")
COLUMNS = {
    "s": lambda row: f"{row['seconds']:.1f}",
    "loss": lambda row: f"{row['loss']:.4f}",
    "tokens/s": lambda row: show(row.get("tokens_per_second"), ",.0f") or "-",
    "in common windows": lambda row: f"{row['common_loss']:.4f}",
    "s to its best": lambda row: show(row.get("seconds_to_goal"), ".1f") or "-",
    "memory": lambda row: human_bytes(row["peak_bytes"]) if row.get("peak_bytes") else "-",
}
PEER_COLUMNS, GPU_COLUMNS = ("in common windows", "s to its best"), ("memory",)
OUR_EVALUATION = re.compile(r"^step +(\d+) .*validation loss ([\d.]+)")
EVALUATION = re.compile(r"^step (\d+): train loss [\d.]+, val loss ([\d.]+)")
ITERATION = re.compile(r"^iter (\d+): loss [\d.]+, time ([\d.]+)ms")
TOKENS = re.compile(r"tokens per iteration will be: ([\d,]+)")


class Run(NamedTuple):
    """One training process.

    Attributes:
        seconds: from its start to its end.
        model: that it kept.
        evaluations: seconds from its start, and the loss by its own estimate, in order.
        tokens_per_second: median over its log; None where it logged none.
        peak_bytes: on a CUDA device.
    """

    seconds: float
    model: "nn.Module"
    evaluations: Sequence[tuple[float, float]] = ()
    tokens_per_second: float | None = None
    peak_bytes: int | None = None

    def seconds_to(self, loss: float) -> float | None:
        """When an evaluation first gave that loss or less; None: never."""
        return next((seconds for seconds, value in self.evaluations if value <= loss), None)


def add_parsers(subparsers: Any) -> None:
    summary = "Time whole training processes and evaluate what they trained."
    config = "--config configs/shakespeare.yaml"
    recipe = add_measurement(subparsers, "train recipe", summary, f"{config} --seeds 1 2 3")
    recipe.set_defaults(nanogpt=None)
    summary = "The same, interleaved with processes of nanoGPT: by its recipe, on a GPU by its own configuration."
    race = add_measurement(subparsers, "train race", summary, f"{config} --nanogpt ../nanoGPT")
    add_nanogpt(race, NANOGPT_FILES, required=True)
    add_count(race, "--peer-steps", 2000, "training steps of nanoGPT on a CPU; its README has 2000")
    for parser, seeds in ((recipe, [1, 2, 3]), (race, [1])):
        add_count(parser, "--seeds", seeds, "a process for each", lowest=0)
        parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Train by every seed, beside nanoGPT if that is wanted, and evaluate all models in the same way."""
    check_overrides(arguments, "run.seed")
    config, peer = load_config(Path(arguments.config), arguments.overrides).config, arguments.nanogpt

    from benchmarks.nanogpt import prepare_nanogpt
    from gpt.data.preparation import prepare
    from gpt.system.device import choose_device

    facts = describe("train race" if peer else "train recipe", arguments, config.run)
    dataset, window = prepare(config.data, read_settings(), report), config.model.block_size
    device = choose_device(config.run.device).type
    names, peer_window = ["gpt", "nanoGPT"][: 2 if peer else 1], NANOGPT_WINDOWS.get(device, GPU_WINDOW)
    common = min(window, peer_window) if peer else window
    dataset.check_length(max(window, peer_window if peer else 0))
    runs: dict[str, list[Row]] = {name: [] for name in names}
    estimates: list[tuple[Row, Run]] = []
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as folder:
        place = prepare_nanogpt(peer, dataset, Path(folder)) if peer else None
        for number, name in interleave(names, len(arguments.seeds), report):
            seed = arguments.seeds[number]
            if name == "gpt":
                run = time_ours(arguments.config, [*arguments.overrides, f"run.seed={seed}"])
            else:
                assert place is not None
                run = time_nanogpt(place, arguments.peer_steps if device == "cpu" else None, config.run.threads)
            own = window if name == "gpt" else peer_window
            losses = {"loss": loss_of(run.model, dataset, own, device)}
            losses["common_loss"] = loss_of(run.model, dataset, common, device)
            speed = {"tokens_per_second": run.tokens_per_second, "peak_bytes": run.peak_bytes}
            row: Row = {"seconds": run.seconds, **losses, **speed} | ({"seed": seed} if name == "gpt" else {})
            runs[name].append(row)
            estimates.append((row, run._replace(model=None)))  # type: ignore[arg-type]
            report(f"{name}: {run.seconds:.1f} s, loss {losses['loss']:.4f} nats per token")
    goal = min((loss for row, run in estimates if "seed" not in row for _, loss in run.evaluations), default=None)
    for row, run in estimates:
        row["seconds_to_goal"] = None if goal is None else run.seconds_to(goal)
    times = {name: ratios(*([run["seconds"] for run in each] for each in (runs["gpt"], runs[name]))) for name in names}
    totals = {name: {key: summarize([one[key] for one in ones]) for key in MEASURED} for name, ones in runs.items()}
    hidden = (() if peer else PEER_COLUMNS) + (() if device == "cuda" else GPU_COLUMNS)
    columns = {name: cell for name, cell in COLUMNS.items() if name not in hidden}
    title = "".join(f"; nanoGPT takes {show_ratios(times[name])} times as long" for name in names[1:])
    result = {**facts, "compile_cache": "cold", "token_files": "cached", "runs": runs, "total": totals, "times": times}
    tables = [make_table(f"{arguments.config}{title}", rows_of(runs, totals), columns, NOTE)]
    return finish(arguments, tables, {**result, "goal": goal})


def rows_of(runs: Mapping[str, list[Row]], totals: Mapping[str, Row]) -> dict[str, Row]:
    """Return a row for each process, by its seed, and rows with mean and deviation where there are several."""
    rows: dict[str, Row] = {}
    for name, ones in runs.items():
        rows |= {f"{name}, {run.get('seed', number)}": run for number, run in enumerate(ones, 1)}
        for statistic in ("mean", "deviation") if len(ones) > 1 else ():
            rows[f"{name}, {statistic}"] = {key: totals[name][key][statistic] for key in MEASURED}
    return rows


def time_ours(config: str, overrides: Sequence[str]) -> Run:
    """Run `scripts/train.py` in a temporary folder; its model is that of the last checkpoint, on the CPU."""
    import torch

    from gpt.checkpoint import load_trained

    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as temporary:
        folder = Path(temporary)
        command = [*script_command("train"), "--config", config, *overrides, f"run.dir={folder}", f"run.name={NAME}"]
        seconds, lines = time_process(command, folder / "caches", report=report)
        evaluations = [(line.seconds, float(m.group(2))) for line in lines if (m := OUR_EVALUATION.match(line.text))]
        metrics = [json.loads(line) for line in (folder / NAME / "metrics.jsonl").read_text("utf-8").splitlines()]
        speeds = [row["speed/tokens_per_second"] for row in metrics if "speed/tokens_per_second" in row]
        loaded = load_trained(folder / NAME / "last", folder, torch.device("cpu"))
        is_cuda = loaded.config.run.device.startswith("cuda")
        peak = max((int(row["speed/memory_bytes"]) for row in metrics if "speed/memory_bytes" in row), default=None)
        speed = statistics.median(speeds) if speeds else None
        return Run(seconds, loaded.model, evaluations, speed, peak if is_cuda else None)


def time_nanogpt(place: Path, steps: int | None, threads: int | None) -> Run:
    """Run the train.py of a copied checkout, with the options of its README for a CPU, or for None steps with none."""
    from benchmarks.nanogpt import OUT, load_nanogpt

    shutil.rmtree(place / OUT, ignore_errors=True)
    options = [] if steps is None else README_OPTIONS.replace("iters=2000", f"iters={steps}").split()
    command = [sys.executable, "train.py", NANOGPT_CONFIG, *options]
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as folder:
        seconds, lines = time_process(command, Path(folder), place, threads, report)
    return read_log(seconds, lines, load_nanogpt(place))


def read_log(seconds: float, lines: Sequence[Line], model: "nn.Module") -> Run:
    """Read nanoGPT's evaluations and speed from what it prints; an iteration after an evaluation includes its time."""
    found = [match for line in lines if (match := ITERATION.match(line.text))]
    evaluations = [(line.seconds, float(m.group(2))) for line in lines if (m := EVALUATION.match(line.text))]
    tokens = [int(m.group(1).replace(",", "")) for line in lines if (m := TOKENS.match(line.text))]
    if not found or not tokens:
        return Run(seconds, model, evaluations)
    return Run(seconds, model, evaluations, tokens[0] / statistics.median(float(m.group(2)) for m in found) * 1000)


def loss_of(model: "nn.Module", dataset: "Dataset", block_size: int, device: str = "cpu") -> float:
    """Compute the mean loss over the whole validation split in float32, in nats per token."""
    import torch

    from gpt.system.device import Compute
    from gpt.training.loss import evaluate, full_batches

    compute = Compute(torch.device(device), torch.float32)
    return evaluate(model.to(compute.device), full_batches(dataset.val, block_size, 64), compute).loss
