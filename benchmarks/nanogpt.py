"""nanoGPT from a checkout: its model, a step of its training loop, its data, and its checkpoint."""

import contextlib
import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.processes import time_process
from benchmarks.step_timer import StepTimer
from gpt.config import LoadedConfig
from gpt.corpora import prepare
from gpt.data import Dataset
from gpt.data.batches import BatchSampler
from gpt.device import choose_device
from gpt.environment import read_settings
from gpt.errors import DataError, GPTError
from gpt.progress import silent
from gpt.training.plan import resolve

OUT = "out-shakespeare-char"
"""Folder of the run, which nanoGPT's configuration names."""
COMPILED = "_orig_mod."
"""Prefix of every weight that torch.compile adds, and nanoGPT leaves."""
SHAPE = ("n_layer", "n_head", "n_embd", "block_size", "bias", "dropout", "vocab_size")


def import_nanogpt(checkout: Path) -> Any:
    """Import model.py of a checkout."""
    spec = importlib.util.spec_from_file_location("nanogpt_model", checkout / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build_nanogpt(checkout: Path, shape: dict[str, Any]) -> Any:
    """Build its model from the arguments of its GPTConfig."""
    module = import_nanogpt(checkout)
    with contextlib.redirect_stdout(sys.stderr):  # it prints its number of parameters
        return module.GPT(module.GPTConfig(**shape))


def train_nanogpt(loaded: LoadedConfig, timer: StepTimer, checkout: Path, dtype: str) -> None:
    """Train as an iteration of nanoGPT's train.py does, with its model and optimizer, on our batches, without end.

    Its train.py never uses autocast on a CPU: bfloat16 there is what it would be with it.
    """
    dataset = prepare(loaded.config.data, read_settings(), silent)
    config, device = resolve(loaded, dataset), choose_device(loaded.config.run.device)
    optim, train = config.optim, config.train
    torch.set_num_threads(config.run.threads or torch.get_num_threads())
    model = build_nanogpt(checkout, {key: getattr(config.model, key) for key in SHAPE}).to(device)
    optimizer = model.configure_optimizers(optim.weight_decay, optim.learning_rate, optim.betas, device.type)
    sampler = BatchSampler(dataset.train, config.model.block_size, config.run.seed)
    timer.begin(model, dtype, "eager")
    while True:
        for _ in range(train.grad_accum_steps):
            inputs, targets = sampler.get_batch(train.batch_size)
            with torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
                loss = model(inputs.to(device), targets.contiguous().to(device))[1] / train.grad_accum_steps
            loss.backward()
        if optim.grad_clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), optim.grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        timer.progress(0, None)


def prepare_nanogpt(checkout: Path, dataset: Dataset, folder: Path) -> Path:
    """Copy a checkout into a folder, and run its prepare.py there on our text; return the copy.

    Raises:
        GPTError: its prepare.py fails, or does not encode and split the text as this package does.
    """
    place = folder / "nanogpt"
    shutil.copytree(checkout, place, ignore=shutil.ignore_patterns(".git", "__pycache__"))
    data = place / "data" / "shakespeare_char"
    text = "".join(dataset.tokenizer.decode(np.asarray(split)) for split in (dataset.train, dataset.val))
    (data / "input.txt").write_text(text, encoding="utf-8")
    time_process([sys.executable, "prepare.py"], folder / "caches", data)
    for name, ours in (("train", dataset.train), ("val", dataset.val)):
        if not np.array_equal(np.fromfile(data / f"{name}.bin", dtype=np.uint16), ours):
            needs = "both need data.tokenizer=char, data.val_fraction=0.1"
            raise DataError(f"nanoGPT's {name}.bin has other tokens; {needs}")
    return place


def load_nanogpt(folder: Path) -> "AllLogits":
    """Load the checkpoint in a copy, the best by nanoGPT's own estimate; raise GPTError where there is none."""
    path = folder / OUT / "ckpt.pt"
    if not path.is_file():
        raise GPTError("nanoGPT left no checkpoint; it writes one every 250 steps, so --peer-steps has to be higher")
    saved = torch.load(path, map_location="cpu", weights_only=True)
    model = build_nanogpt(folder, saved["model_args"])
    model.load_state_dict({name.removeprefix(COMPILED): value for name, value in saved["model"].items()})
    return AllLogits(model, saved["model_args"]["block_size"])


class AllLogits(nn.Module):
    """Makes nanoGPT return the logits of all positions, which it does only where it is given targets."""

    def __init__(self, model: nn.Module, block_size: int) -> None:
        super().__init__()
        self.model, self.block_size = model, block_size

    def forward(self, idx: Tensor) -> Tensor:
        """Map ids (B, T) to logits (B, T, V)."""
        logits: Tensor = self.model(idx, idx.contiguous())[0]
        return logits
