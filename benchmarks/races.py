"""`scripts/bench.py train recipe` and `train race`: seconds and loss of whole training processes, and of peers."""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measure import Row, describe, finish, interleave, make_table, ratios, show_ratios, summarize
from benchmarks.options import add_count, add_counts, add_measurement, add_peers, check_hugging_face, check_overrides
from benchmarks.processes import ROOT, script_command, time_process
from gpt.cli.command import report
from gpt.config import Config, dump_config, load_config
from gpt.environment import read_settings
from gpt.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from gpt.data import Dataset

NAME = "bench"
"""Of the run."""
NANOGPT_CONFIG = "config/train_shakespeare_char.py"
NANOGPT_FILES = ("model.py", "train.py", NANOGPT_CONFIG, "data/shakespeare_char/prepare.py")
README_OPTIONS = (
    "--device=cpu --compile=False --eval_iters=20 --log_interval=1 --block_size=64 --batch_size=12 --n_layer=4 "
    "--n_head=4 --n_embd=128 --max_iters=2000 --lr_decay_iters=2000 --dropout=0.0"
)
"""Word for word what nanoGPT's README gives for a CPU."""
BUDGET = ROOT / "configs" / "shakespeare_nanogpt_cpu.yaml"
"""The same recipe: shape, batches, steps and optimizer."""
NOTE = (
    "Seconds: scripts/train.py from its start to its end, compiled code not cached before, token files cached.\n"
    "Loss: last checkpoint, nats per token over the whole validation split, as scripts/evaluate.py, not timed."
)
COLUMNS = {"seconds": lambda row: f"{row['seconds']:.1f}", "loss": lambda row: f"{row['loss']:.4f}"}
RACE_NOTE = (
    "Seconds: mean of whole processes, compiled code not cached before, data prepared before. Times: over the first.\n"
    "Loss: whole validation split in float32, nats per token, in blocks that every model can read, and in blocks as\n"
    "long as the model's own window. Of the last weights; nanoGPT keeps those that it finds best."
)
RACE_COLUMNS = {
    "seconds": lambda row: f"{row['seconds']['mean']:.1f}",
    "times": lambda row: show_ratios(row["times_slower"]),
    "loss": lambda row: f"{row['loss']['mean']:.4f}",
    "in own window": lambda row: f"{row['own_loss']['mean']:.4f}",
    "own window": lambda row: f"{row['runs'][0]['block_size']} tokens",
}


@dataclass(frozen=True)
class Contender:
    """A command that trains into an empty folder, run in `place`, and what loads its model, (B, T) -> (B, T, V)."""

    block_size: int
    command: Callable[[Path], list[str]]
    load: Callable[[Path], "nn.Module"]
    place: Path | None = None
    threads: int | None = None


def add_parsers(subparsers: Any) -> None:
    """Add the options of both measurements."""
    summary = "Time whole training processes and evaluate what they trained."
    config = "--config configs/shakespeare.yaml"
    recipe = add_measurement(subparsers, "train recipe", summary, f"{config} --seeds 1 2 3")
    add_counts(recipe, "--seeds", [1, 2, 3], "a process for each", lowest=0)
    recipe.set_defaults(run=run_recipe)
    summary = "Time a recipe against nanoGPT's recipe for a CPU, and against Hugging Face's Trainer with that budget."
    race = add_measurement(subparsers, "train race", summary, f"{config} --nanogpt ../nanoGPT --hf")
    add_peers(race, "GPT-2 under transformers.Trainer", NANOGPT_FILES)
    add_count(race, "--rounds", 1, "processes of each")
    add_count(race, "--peer-steps", 2000, "training steps of the peers, as many as nanoGPT's README has")
    race.set_defaults(run=run_race)


def run_recipe(arguments: argparse.Namespace) -> int:
    """Train with every seed, one after the other."""
    check_overrides(arguments, "run.seed")
    config, dataset, facts = _open(arguments)
    runs = []
    for seed in arguments.seeds:
        ours = our_recipe(arguments.config, [*arguments.overrides, f"run.seed={seed}"], config.model.block_size)
        run = run_once(f"seed {seed}", ours, dataset, config.model.block_size)
        runs.append({"seed": seed, "seconds": run["seconds"], "loss": run["loss"]})
    totals = {key: summarize([run[key] for run in runs]) for key in ("seconds", "loss")}
    rows = {f"seed {run['seed']}": run for run in runs}
    for statistic in ("mean", "deviation") if len(runs) > 1 else ("mean",):
        rows[statistic] = {key: total[statistic] for key, total in totals.items()}
    result = {**facts, "compile_cache": "cold", "token_files": "cached", **totals, "runs": runs}
    return finish(arguments, [make_table(arguments.config, rows, COLUMNS, NOTE)], result)


def run_race(arguments: argparse.Namespace) -> int:
    """Train by each in interleaved rounds, and evaluate what each left in the same way."""
    check_overrides(arguments)
    if arguments.nanogpt is None and not arguments.hf:
        raise ConfigError("nobody to race against; give --nanogpt PATH, --hf or both")
    check_hugging_face(arguments.hf)
    config, dataset, facts = _open(arguments)
    budget, ours = same_budget(config, arguments.peer_steps), f"gpt, {Path(arguments.config).stem}"
    runs: dict[str, list[Row]] = {}
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as folder:
        contenders = {ours: our_recipe(arguments.config, arguments.overrides, config.model.block_size)}
        if arguments.nanogpt is not None:
            place = Path(folder) / "nanogpt"
            contenders["nanoGPT, README for a CPU"] = nanogpt(arguments.nanogpt, dataset, budget, place)
        if arguments.hf:
            contenders["Hugging Face Trainer, same budget"] = hugging_face(budget)
        sizes = [contender.block_size for contender in contenders.values()]
        dataset.check_length(max(sizes))
        for _, name in interleave(list(contenders), arguments.rounds, report):
            runs.setdefault(name, []).append(run_once(name, contenders[name], dataset, min(sizes)))
    rows: dict[str, Row] = {}
    for name, ones in runs.items():
        rows[name] = {key: summarize([run[key] for run in ones]) for key in ("seconds", "loss", "own_loss")}
        times = ratios(*([run["seconds"] for run in each] for each in (runs[ours], ones)))
        rows[name] |= {"times_slower": times, "runs": ones}
    settings = {"rounds": arguments.rounds, "peer_steps": arguments.peer_steps, "compile_cache": "cold"}
    result = {**facts, **settings, "baseline": ours, "contenders": rows}
    return finish(arguments, [make_table(arguments.config, rows, RACE_COLUMNS, RACE_NOTE)], result)


def _open(arguments: argparse.Namespace) -> tuple[Config, "Dataset", Row]:
    config = load_config(Path(arguments.config), arguments.overrides).config

    from gpt.data import prepare

    facts = describe(f"train {arguments.run.__name__.removeprefix('run_')}", arguments, config.run)
    return config, prepare(config.data, read_settings(), report), facts


def run_once(name: str, contender: Contender, dataset: "Dataset", common_size: int) -> Row:
    """Train from cold caches, then evaluate in blocks of two sizes, which is not timed; remove all files."""
    report(f"{name}: training in a process of its own")
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as folder:
        command, caches = contender.command(Path(folder)), Path(folder) / "caches"
        seconds, _ = time_process(command, caches, contender.place, contender.threads, report)
        model, size = contender.load(Path(folder)), contender.block_size
    own = loss_of(model, dataset, size)
    loss = own if size == common_size else loss_of(model, dataset, common_size)
    report(f"{name}: {seconds:.1f} s, loss {loss:.4f}")
    return {"seconds": seconds, "loss": loss, "own_loss": own, "block_size": size}


def our_recipe(config: str, overrides: Sequence[str], block_size: int) -> Contender:
    """Return `scripts/train.py` with a configuration file and overrides."""

    def load(folder: Path) -> "nn.Module":
        import torch

        from gpt.checkpoint import load_trained

        return load_trained(folder / NAME / "last", folder, torch.device("cpu")).model

    return Contender(block_size, partial(train_command, config, overrides), load)


def train_command(config: str, overrides: Sequence[str], folder: Path) -> list[str]:
    """Return the command that trains into a folder."""
    return [*script_command("train"), "--config", config, *overrides, f"run.dir={folder}", f"run.name={NAME}"]


def nanogpt(checkout: Path, dataset: "Dataset", budget: Config, place: Path) -> Contender:
    """Return nanoGPT's train.py with the options of its README, in a copy at `place`, whose data is prepared here.

    Raises:
        GPTError: its prepare.py fails or encodes other tokens.
    """
    from benchmarks.nanogpt import OUT, check_same_tokens, copy_checkout, load_nanogpt

    data = copy_checkout(checkout, place, dataset)
    time_process([sys.executable, "prepare.py"], place / "caches", data)
    check_same_tokens(data, dataset)
    options = README_OPTIONS.replace("iters=2000", f"iters={budget.train.max_steps}").split()

    def command(folder: Path) -> list[str]:
        shutil.rmtree(place / OUT, ignore_errors=True)
        return [sys.executable, "train.py", NANOGPT_CONFIG, *options]

    return Contender(budget.model.block_size, command, lambda _: load_nanogpt(place), place, budget.run.threads)


def hugging_face(budget: Config) -> Contender:
    """Return GPT-2 under transformers.Trainer, as a configuration says."""
    from benchmarks.hugging_face import load_gpt2

    def command(folder: Path) -> list[str]:
        (folder / "budget.yaml").write_text(dump_config(budget), encoding="utf-8")
        return [sys.executable, "-m", "benchmarks.hugging_face", str(folder / "budget.yaml"), str(folder / "model")]

    block_size, threads = budget.model.block_size, budget.run.threads
    return Contender(block_size, command, lambda folder: load_gpt2(folder / "model"), threads=threads)


def same_budget(config: Config, steps: int) -> Config:
    """Return nanoGPT's recipe for a CPU on the data and threads of a configuration, with another number of steps."""
    overrides = [f"train.max_steps={steps}", f"optim.warmup_steps={min(100, steps - 1)}"]
    budget = load_config(BUDGET, overrides).config
    run = budget.run.model_copy(update={"threads": config.run.threads})
    return budget.model_copy(update={"data": config.data, "run": run})


def loss_of(model: "nn.Module", dataset: "Dataset", block_size: int, device: str = "cpu") -> float:
    """Compute the mean loss over the whole validation split in float32, in nats per token."""
    import torch

    from gpt.device import Compute
    from gpt.evaluation.loss import evaluate
    from gpt.evaluation.windows import full_batches

    compute = Compute(torch.device(device), torch.float32)
    return evaluate(model.to(compute.device), full_batches(dataset.val, block_size, 64), compute).loss
