"""Who takes part in a race: how each trains, and how the model it leaves is loaded."""

import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from benchmarks.nanogpt import OUT, check_same_tokens, copy_checkout, load_nanogpt
from benchmarks.processes import module_command, time_process
from benchmarks.race_report import Finish
from benchmarks.readme import BLOCK_SIZE, CONFIG_FILE, readme_options
from benchmarks.recipe import NAME, train_command
from gpt.checkpoint import load_trained
from gpt.config import Config, dump_config
from gpt.data import Dataset
from gpt.device import Compute
from gpt.evaluation.loss import evaluate
from gpt.evaluation.windows import full_batches


@dataclass(frozen=True)
class Contender:
    """Trains in a process of its own, as often as asked.

    Attributes:
        name: shown to the user.
        block_size: longest that its model can read.
        train: in an empty folder, where it also keeps its caches; gives the wall seconds of the process.
        load: what it trained in that folder, (B, T) -> (B, T, V).
    """

    name: str
    block_size: int
    train: Callable[[Path], float]
    load: Callable[[Path], nn.Module]


def ours(config: str, overrides: Sequence[str], block_size: int) -> Contender:
    """`scripts/train.py` with a configuration file and overrides."""

    def train(folder: Path) -> float:
        return time_process(train_command(config, overrides, folder), folder / "caches")

    def load(folder: Path) -> nn.Module:
        return load_trained(folder / NAME / "last", folder, torch.device("cpu")).model

    return Contender(f"gpt, {Path(config).stem}", block_size, train, load)


def nanogpt(checkout: Path, dataset: Dataset, steps: int, threads: int | None, place: Path) -> Contender:
    """Its train.py, in a copy of the checkout at `place`, whose data is prepared here.

    Raises:
        GPTError: its preparation fails or gives other tokens.
    """
    data = copy_checkout(checkout, place, dataset)
    time_process([sys.executable, "prepare.py"], place / "caches", data)
    check_same_tokens(data, dataset)

    def train(folder: Path) -> float:
        shutil.rmtree(place / OUT, ignore_errors=True)
        command = [sys.executable, "train.py", CONFIG_FILE, *readme_options(steps)]
        return time_process(command, folder / "caches", place, threads)

    return Contender("nanoGPT, README for a CPU", BLOCK_SIZE, train, lambda _: load_nanogpt(place))


def hugging_face(budget: Config) -> Contender:
    """GPT-2 under transformers.Trainer."""

    def train(folder: Path) -> float:
        config = folder / "budget.yaml"
        config.write_text(dump_config(budget), encoding="utf-8")
        command = module_command("benchmarks.hugging_face", str(config), str(folder / "model"))
        return time_process(command, folder / "caches", threads=budget.run.threads)

    def load(folder: Path) -> nn.Module:
        from benchmarks.hugging_face import load_gpt2

        return load_gpt2(folder / "model")

    return Contender("Hugging Face Trainer, same budget", budget.model.block_size, train, load)


def run_once(contender: Contender, dataset: Dataset, common_size: int) -> Finish:
    """Train from cold caches, then judge, which is not timed; nothing of it stays."""
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as name:
        folder = Path(name)
        seconds = contender.train(folder)
        model = contender.load(folder)
    own_size = contender.block_size
    own_loss = loss_of(model, dataset, own_size)
    loss = own_loss if own_size == common_size else loss_of(model, dataset, common_size)
    return Finish(seconds, loss, own_loss, own_size)


def loss_of(model: nn.Module, dataset: Dataset, block_size: int) -> float:
    """Mean loss over the whole validation split, in float32."""
    compute = Compute(torch.device("cpu"), torch.float32)
    return evaluate(model, full_batches(dataset.val, block_size, 128), compute).loss
