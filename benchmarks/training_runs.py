"""`scripts/bench.py train recipe` and `train race`: seconds and loss of training processes."""

import argparse
import json
import re
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.cli_options import (
    add_count,
    add_measurement,
    add_nanogpt,
    at_least,
    check_overrides,
)
from benchmarks.measure import (
    Row,
    describe,
    finish,
    interleave,
    make_table,
    ratios,
    show,
    show_ratios,
    summarize,
)
from benchmarks.processes import Line, script_command, time_process
from gpt.cli.command import report
from gpt.cli.tables import human_bytes
from gpt.config.sources import load_config
from gpt.system.environment import read_settings

if TYPE_CHECKING:
    from torch import nn

    from gpt.data.dataset import Dataset

RUN_NAME = "bench"
NANOGPT_CONFIG = "config/train_shakespeare_char.py"
NANOGPT_FILES = ("model.py", "train.py", NANOGPT_CONFIG, "data/shakespeare_char/prepare.py")
README_OPTIONS = (
    "--device=cpu --compile=False --eval_iters=20 --log_interval=1 --block_size=64 "
    "--batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --max_iters=2000 "
    "--lr_decay_iters=2000 --dropout=0.0"
)
"""Word for word what nanoGPT's README gives for a CPU; on a GPU it trains by its configuration
alone.
"""
README_NUM_STEPS = 2000
README_STEPS = f"iters={README_NUM_STEPS}"
"""The number of steps in these options, in two of them."""
NANOGPT_CPU_WINDOW = 64
"""Of README_OPTIONS."""
NANOGPT_GPU_WINDOW = 256
"""Of NANOGPT_CONFIG."""
NOTE = (
    "s: seconds from the start of the process to its end, with cold compile caches and\n"
    "prepared data. Loss: nats per token over the whole validation split in float32, in\n"
    "windows of the model's own length and, beside nanoGPT, of a length that both models can\n"
    "read. Ours is of the last weights, nanoGPT's of those that it estimates best. To its\n"
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
PEER_COLUMNS = ("in common windows", "s to its best")
"""Columns that say something only beside nanoGPT."""
GPU_COLUMNS = ("memory",)
OUR_EVALUATION = re.compile(r"^step +\d+ .*validation loss ([\d.]+)")
NANOGPT_EVALUATION = re.compile(r"^step \d+: train loss [\d.]+, val loss ([\d.]+)")
NANOGPT_ITERATION = re.compile(r"^iter \d+: loss [\d.]+, time ([\d.]+)ms")
NANOGPT_TOKENS = re.compile(r"tokens per iteration will be: ([\d,]+)")


Evaluations = Sequence[tuple[float, float]]
"""Of each evaluation, the seconds from the start of the process and the trainer's own estimate of
the loss.
"""


class Run(NamedTuple):
    """One training process.

    Attributes:
        seconds: from its start to its end.
        model: the model that it saved.
        tokens_per_second: median over its log; None where it logged none.
        peak_bytes: on a CUDA device, otherwise None.
    """

    seconds: float
    model: "nn.Module"
    evaluations: Evaluations = ()
    tokens_per_second: float | None = None
    peak_bytes: int | None = None

    def row(self, loss: float, common_loss: float) -> Row:
        """Return what a result has of this process, with the losses of its model over the
        validation split.
        """
        return {
            "seconds": self.seconds,
            "loss": loss,
            "common_loss": common_loss,
            "tokens_per_second": self.tokens_per_second,
            "peak_bytes": self.peak_bytes,
        }


def add_parsers(subparsers: Any) -> None:
    """Add both commands."""
    config = "--config configs/shakespeare.yaml"
    recipe = add_measurement(
        subparsers,
        "train recipe",
        "Time whole training processes and evaluate what they trained.",
        f"{config} --seeds 1 2 3",
    )
    recipe.set_defaults(nanogpt=None)
    race = add_measurement(
        subparsers,
        "train race",
        "The same, interleaved with processes of nanoGPT: by its recipe, on a GPU by its own "
        "configuration.",
        f"{config} --nanogpt ../nanoGPT",
    )
    add_nanogpt(race, NANOGPT_FILES, required=True)
    race.add_argument(
        "--peer-steps",
        type=at_least(1),
        metavar="N",
        help="end nanoGPT after N training steps (default: on a CPU the 2000 of its README, on a "
        "GPU all 5000 of its configuration)",
    )
    for parser, seeds in ((recipe, [1, 2, 3]), (race, [1])):
        add_count(parser, "--seeds", seeds, "a process for each", lowest=0)
        parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Train by every seed, beside nanoGPT if that is wanted, and evaluate all models in the same
    way.
    """
    check_overrides(arguments, "run.seed")
    config = load_config(Path(arguments.config), arguments.overrides).config
    peer = arguments.nanogpt

    from benchmarks.nanogpt import prepare_nanogpt
    from gpt.data.preparation import prepare
    from gpt.system.device import choose_device

    facts = describe("train race" if peer else "train recipe", arguments, config.run)
    dataset = prepare(config.data, read_settings(), report)
    device = choose_device(config.run.device).type
    windows = {"gpt": config.model.block_size}
    if peer:
        windows["nanoGPT"] = NANOGPT_CPU_WINDOW if device == "cpu" else NANOGPT_GPU_WINDOW
    common_window = min(windows.values())
    dataset.check_length(max(windows.values()))

    rows: dict[str, list[Row]] = {name: [] for name in windows}
    evaluations: dict[str, list[Evaluations]] = {name: [] for name in windows}
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as folder:
        copy = prepare_nanogpt(peer, dataset, Path(folder)) if peer else None
        for number, name in interleave(list(windows), len(arguments.seeds), report):
            seed = arguments.seeds[number]
            if name == "gpt":
                run = time_ours(arguments.config, [*arguments.overrides, f"run.seed={seed}"])
            else:
                assert copy is not None
                options = nanogpt_options(device, arguments.peer_steps)
                run = time_nanogpt(copy, options, config.run.threads)
            loss = loss_of(run.model, dataset, windows[name], device)
            row = run.row(loss, loss_of(run.model, dataset, common_window, device))
            if name == "gpt":
                row["seed"] = seed
            rows[name].append(row)
            evaluations[name].append(run.evaluations)
            report(f"{name}: {run.seconds:.1f} s, loss {loss:.4f} nats per token")
    goal = lowest_loss(evaluations.get("nanoGPT", []))
    for name in windows:
        for row, of_run in zip(rows[name], evaluations[name], strict=True):
            row["seconds_to_goal"] = None if goal is None else seconds_to(goal, of_run)
    return _finish(arguments, facts, rows, goal, is_cuda=device == "cuda")


def _finish(
    arguments: argparse.Namespace,
    facts: Row,
    runs: Mapping[str, list[Row]],
    goal: float | None,
    *,
    is_cuda: bool,
) -> int:
    """Print the table and the result of all processes."""
    seconds = {name: [row["seconds"] for row in rows] for name, rows in runs.items()}
    times = {name: ratios(seconds["gpt"], values) for name, values in seconds.items()}
    totals: dict[str, Row] = {}
    for name, rows in runs.items():
        totals[name] = {key: summarize([row[key] for row in rows]) for key in MEASURED}
    title = arguments.config
    hidden: list[str] = []
    if "nanoGPT" in runs:
        title += f"; nanoGPT takes {show_ratios(times['nanoGPT'])} times as long"
    else:
        hidden += PEER_COLUMNS
    if not is_cuda:
        hidden += GPU_COLUMNS
    columns = {name: cell for name, cell in COLUMNS.items() if name not in hidden}
    table = make_table(title, rows_of(runs, totals), columns, NOTE)
    result = {
        **facts,
        "compile_cache": "cold",
        "token_files": "cached",
        "runs": runs,
        "total": totals,
        "times": times,
        "goal": goal,
    }
    return finish(arguments, [table], result)


def lowest_loss(runs: Sequence[Evaluations]) -> float | None:
    """Return the lowest loss of all evaluations; None if there are none."""
    losses = [loss for _, loss in chain.from_iterable(runs)]
    return min(losses, default=None)


def seconds_to(loss: float, evaluations: Evaluations) -> float | None:
    """Return the seconds to the first evaluation with that loss or less; None if there is none."""
    for seconds, value in evaluations:
        if value <= loss:
            return seconds
    return None


def rows_of(runs: Mapping[str, list[Row]], totals: Mapping[str, Row]) -> dict[str, Row]:
    """Return a row for each process, by its seed, and rows with mean and deviation where there are
    several.
    """
    rows: dict[str, Row] = {}
    for name, of_name in runs.items():
        for number, row in enumerate(of_name, 1):
            rows[f"{name}, {row.get('seed', number)}"] = row
        if len(of_name) > 1:
            for statistic in ("mean", "deviation"):
                total = {key: totals[name][key][statistic] for key in MEASURED}
                rows[f"{name}, {statistic}"] = total
    return rows


def time_ours(config: str, overrides: Sequence[str]) -> Run:
    """Run `scripts/train.py` in a temporary folder.

    The model is that of the last checkpoint, on the CPU.
    """
    import torch

    from gpt.checkpoint import load_trained

    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as temporary:
        folder = Path(temporary)
        place = [f"run.dir={folder}", f"run.name={RUN_NAME}"]
        command = [*script_command("train"), "--config", config, *overrides, *place]
        seconds, lines = time_process(command, folder / "caches", report=report)
        evaluations = read_evaluations(lines, OUR_EVALUATION)
        log = (folder / RUN_NAME / "metrics.jsonl").read_text("utf-8")
        metrics = [json.loads(line) for line in log.splitlines()]
        speeds = _values(metrics, "speed/tokens_per_second")
        speed = statistics.median(speeds) if speeds else None
        loaded = load_trained(folder / RUN_NAME / "last", folder, torch.device("cpu"))
        peak = None
        if loaded.config.run.device.startswith("cuda"):
            peak = max(
                (int(value) for value in _values(metrics, "speed/memory_bytes")), default=None
            )
        return Run(seconds, loaded.model, evaluations, speed, peak)


def _values(metrics: Sequence[Row], name: str) -> list[float]:
    """Return a metric of all steps that have it."""
    return [row[name] for row in metrics if name in row]


def nanogpt_options(device: str, steps: int | None) -> list[str]:
    """Return the options of nanoGPT's train.py: on a CPU those of its README, on a GPU none.

    Args:
        steps: end after so many steps, with the learning rates of the whole training on a GPU;
            None: train as long as README or configuration say.
    """
    if device == "cpu":
        return README_OPTIONS.replace(README_STEPS, f"iters={steps or README_NUM_STEPS}").split()
    return [] if steps is None else [f"--max_iters={steps}"]


def time_nanogpt(copy: Path, options: Sequence[str], threads: int | None) -> Run:
    """Run the train.py of a copied checkout, by its configuration and some options."""
    from benchmarks.nanogpt import OUTPUT_FOLDER, load_nanogpt

    shutil.rmtree(copy / OUTPUT_FOLDER, ignore_errors=True)  # the checkpoint of the process before
    command = [sys.executable, "train.py", NANOGPT_CONFIG, *options]
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as folder:
        seconds, lines = time_process(command, Path(folder), copy, threads, report)
    model = load_nanogpt(copy)
    evaluations = read_evaluations(lines, NANOGPT_EVALUATION)
    return Run(seconds, model, evaluations, nanogpt_speed(lines))


def read_evaluations(lines: Sequence[Line], pattern: re.Pattern[str]) -> Evaluations:
    """Return the seconds and the loss of each line that fits a pattern, which has the loss as a
    group.
    """
    evaluations = []
    for line in lines:
        match = pattern.match(line.text)
        if match:
            evaluations.append((line.seconds, float(match.group(1))))
    return evaluations


def nanogpt_speed(lines: Sequence[Line]) -> float | None:
    """Return tokens per second by the median iteration that nanoGPT has logged; None if it has
    logged none.

    The time of an iteration after an evaluation includes the evaluation, which a median does not
    notice.
    """
    milliseconds: list[float] = []
    tokens = 0
    for line in lines:
        iteration = NANOGPT_ITERATION.match(line.text)
        if iteration:
            milliseconds.append(float(iteration.group(1)))
        found = NANOGPT_TOKENS.match(line.text)
        if found and not tokens:
            tokens = int(found.group(1).replace(",", ""))
    if not milliseconds or not tokens:
        return None
    return tokens / statistics.median(milliseconds) * 1000


def loss_of(model: "nn.Module", dataset: "Dataset", block_size: int, device: str = "cpu") -> float:
    """Compute the mean loss over the whole validation split in float32, in nats per token."""
    import torch

    from gpt.system.device import Compute
    from gpt.training.loss import evaluate, full_batches

    compute = Compute(torch.device(device), torch.float32)
    batches = full_batches(dataset.val, block_size, 64)
    return evaluate(model.to(compute.device), batches, compute).loss
