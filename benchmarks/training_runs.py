"""`scripts/bench.py train recipe` and `train race`: seconds and loss of whole training processes."""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.cli_options import add_count, add_measurement, add_nanogpt, check_overrides
from benchmarks.measure import Row, describe, finish, interleave, make_table, ratios, show_ratios, summarize
from benchmarks.processes import script_command, time_process
from gpt.cli.command import report
from gpt.config import load_config
from gpt.environment import read_settings

if TYPE_CHECKING:
    from torch import nn

    from gpt.data import Dataset

NAME = "bench"
NANOGPT_CONFIG = "config/train_shakespeare_char.py"
NANOGPT_FILES = ("model.py", "train.py", NANOGPT_CONFIG, "data/shakespeare_char/prepare.py")
README_OPTIONS = (
    "--device=cpu --compile=False --eval_iters=20 --log_interval=1 --block_size=64 --batch_size=12 --n_layer=4 "
    "--n_head=4 --n_embd=128 --max_iters=2000 --lr_decay_iters=2000 --dropout=0.0"
)
"""Word for word what nanoGPT's README gives for a CPU."""
NANOGPT_WINDOW = 64
NOTE = (
    "s: seconds from the start of the process to its end, with cold compile caches and prepared data. Loss: nats per\n"
    "token over the whole validation split in float32, in windows of the model's own length and, beside nanoGPT, of a\n"
    "length that both models can read. Ours is of the last weights, nanoGPT's of those that it estimates best."
)
MEASURED = ("seconds", "loss", "common_loss")
COLUMNS = {
    "s": lambda row: f"{row['seconds']:.1f}",
    "loss": lambda row: f"{row['loss']:.4f}",
    "in common windows": lambda row: f"{row['common_loss']:.4f}",
}


def add_parsers(subparsers: Any) -> None:
    """Add the options of both measurements."""
    summary = "Time whole training processes and evaluate what they trained."
    config = "--config configs/shakespeare.yaml"
    recipe = add_measurement(subparsers, "train recipe", summary, f"{config} --seeds 1 2 3")
    recipe.set_defaults(nanogpt=None)
    summary = "The same, interleaved with processes of nanoGPT, which trains by its recipe for a CPU."
    race = add_measurement(subparsers, "train race", summary, f"{config} --nanogpt ../nanoGPT")
    add_nanogpt(race, NANOGPT_FILES, required=True)
    add_count(race, "--peer-steps", 2000, "training steps of nanoGPT; its README has 2000")
    for parser, seeds in ((recipe, [1, 2, 3]), (race, [1])):
        add_count(parser, "--seeds", seeds, "a process for each", lowest=0)
        parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Train by every seed, beside nanoGPT if that is wanted, and evaluate all models in the same way."""
    check_overrides(arguments, "run.seed")
    config, peer = load_config(Path(arguments.config), arguments.overrides).config, arguments.nanogpt

    from benchmarks.nanogpt import prepare_nanogpt
    from gpt.corpora import prepare

    facts = describe("train race" if peer else "train recipe", arguments, config.run)
    dataset, window = prepare(config.data, read_settings(), report), config.model.block_size
    names, common = ["gpt", "nanoGPT"][: 2 if peer else 1], min(window, NANOGPT_WINDOW) if peer else window
    dataset.check_length(max(window, NANOGPT_WINDOW if peer else 0))
    runs: dict[str, list[Row]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as folder:
        place = prepare_nanogpt(peer, dataset, Path(folder)) if peer else None
        for number, name in interleave(names, len(arguments.seeds), report):
            seed = arguments.seeds[number]
            if name == "gpt":
                seconds, model = time_ours(arguments.config, [*arguments.overrides, f"run.seed={seed}"])
            else:
                assert place is not None
                seconds, model = time_nanogpt(place, arguments.peer_steps, config.run.threads)
            own = window if name == "gpt" else NANOGPT_WINDOW
            losses = {"loss": loss_of(model, dataset, own), "common_loss": loss_of(model, dataset, common)}
            runs[name].append({"seconds": seconds, **losses} | ({"seed": seed} if name == "gpt" else {}))
            report(f"{name}: {seconds:.1f} s, loss {losses['loss']:.4f} nats per token")
    times = {name: ratios(*([run["seconds"] for run in each] for each in (runs["gpt"], runs[name]))) for name in names}
    totals = {name: {key: summarize([one[key] for one in ones]) for key in MEASURED} for name, ones in runs.items()}
    columns = COLUMNS if peer else {name: COLUMNS[name] for name in ("s", "loss")}
    title = "".join(f"; nanoGPT takes {show_ratios(times[name])} times as long" for name in names[1:])
    result = {**facts, "compile_cache": "cold", "token_files": "cached", "runs": runs, "total": totals, "times": times}
    return finish(arguments, [make_table(f"{arguments.config}{title}", rows_of(runs, totals), columns, NOTE)], result)


def rows_of(runs: Mapping[str, list[Row]], totals: Mapping[str, Row]) -> dict[str, Row]:
    """Return a row for each process, by its seed, and rows with mean and deviation where there are several."""
    rows: dict[str, Row] = {}
    for name, ones in runs.items():
        rows |= {f"{name}, {run.get('seed', number)}": run for number, run in enumerate(ones, 1)}
        for statistic in ("mean", "deviation") if len(ones) > 1 else ():
            rows[f"{name}, {statistic}"] = {key: totals[name][key][statistic] for key in MEASURED}
    return rows


def time_ours(config: str, overrides: Sequence[str]) -> tuple[float, "nn.Module"]:
    """Run `scripts/train.py` in a temporary folder; return its seconds and the model of its last checkpoint."""
    import torch

    from gpt.checkpoint import load_trained

    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as temporary:
        folder = Path(temporary)
        seconds, _ = time_process(train_command(config, overrides, folder), folder / "caches", report=report)
        return seconds, load_trained(folder / NAME / "last", folder, torch.device("cpu")).model


def time_nanogpt(place: Path, steps: int, threads: int | None) -> tuple[float, "nn.Module"]:
    """Run the train.py of a copied checkout, with the options of its README; return its seconds and its model."""
    from benchmarks.nanogpt import OUT, load_nanogpt

    shutil.rmtree(place / OUT, ignore_errors=True)
    options = README_OPTIONS.replace("iters=2000", f"iters={steps}").split()
    command = [sys.executable, "train.py", NANOGPT_CONFIG, *options]
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as folder:
        seconds, _ = time_process(command, Path(folder), place, threads, report)
    return seconds, load_nanogpt(place)


def train_command(config: str, overrides: Sequence[str], folder: Path) -> list[str]:
    """Return the command that trains into a folder."""
    return [*script_command("train"), "--config", config, *overrides, f"run.dir={folder}", f"run.name={NAME}"]


def loss_of(model: "nn.Module", dataset: "Dataset", block_size: int, device: str = "cpu") -> float:
    """Compute the mean loss over the whole validation split in float32, in nats per token."""
    import torch

    from gpt.device import Compute
    from gpt.evaluation.loss import evaluate
    from gpt.evaluation.windows import full_batches

    compute = Compute(torch.device(device), torch.float32)
    return evaluate(model.to(compute.device), full_batches(dataset.val, block_size, 64), compute).loss
