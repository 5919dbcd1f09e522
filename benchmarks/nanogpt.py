"""nanoGPT from a checkout: its model, its README's run for a CPU, and what that run leaves."""

import contextlib
import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gpt.config import ModelConfig
from gpt.data import Dataset
from gpt.errors import ConfigError, DataError, GPTError

OUT = "out-shakespeare-char"
"""Folder of the run, which nanoGPT's configuration names."""

COMPILED = "_orig_mod."
"""What torch.compile puts before the name of every weight, and nanoGPT leaves there."""

SHAPE = ("n_layer", "n_head", "n_embd", "block_size", "bias", "dropout", "vocab_size")


def import_nanogpt(checkout: Path) -> Any:
    """Its module model.py.

    Raises:
        ConfigError: it cannot be imported.
    """
    spec = importlib.util.spec_from_file_location("nanogpt_model", checkout / "model.py")
    if spec is None or spec.loader is None:
        raise ConfigError(f"{checkout / 'model.py'} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def nanogpt_shape(config: ModelConfig) -> dict[str, Any]:
    """Arguments of its GPTConfig."""
    return {key: getattr(config, key) for key in SHAPE}


def copy_checkout(checkout: Path, folder: Path, dataset: Dataset) -> Path:
    """A copy to run in, with the text where its prepare.py looks for it."""
    shutil.copytree(checkout, folder, ignore=shutil.ignore_patterns(".git", "__pycache__"))
    data = folder / "data" / "shakespeare_char"
    data.mkdir(parents=True, exist_ok=True)
    text = dataset.tokenizer.decode(dataset.train) + dataset.tokenizer.decode(dataset.val)
    (data / "input.txt").write_text(text, encoding="utf-8")
    return data


def check_same_tokens(data: Path, dataset: Dataset) -> None:
    """Make sure that its prepare.py numbered and split the text as this package does, so that one judge fits both.

    Raises:
        DataError: it did not.
    """
    for name, ours in (("train", dataset.train), ("val", dataset.val)):
        theirs = np.fromfile(data / f"{name}.bin", dtype=np.uint16)
        if not np.array_equal(theirs, ours):
            raise DataError(
                f"nanoGPT's {name}.bin has other tokens; both need data.tokenizer=char, data.val_fraction=0.1"
            )


def load_nanogpt(folder: Path) -> "AllLogits":
    """The model of the checkpoint in a copy, which is its best one by its own estimate.

    Raises:
        GPTError: there is none.
    """
    path = folder / OUT / "ckpt.pt"
    if not path.is_file():
        raise GPTError(
            "nanoGPT left no checkpoint; it writes one every 250 steps, so --peer-steps is to be 250 or more"
        )
    saved = torch.load(path, map_location="cpu", weights_only=True)
    module = import_nanogpt(folder)
    with contextlib.redirect_stdout(sys.stderr):  # it prints how large it is
        config = module.GPTConfig(**saved["model_args"])
        model = module.GPT(config)
    model.load_state_dict({name.removeprefix(COMPILED): value for name, value in saved["model"].items()})
    return AllLogits(model, config.block_size)


class AllLogits(nn.Module):
    """nanoGPT gives the logits of all positions only when it is given targets."""

    def __init__(self, model: nn.Module, block_size: int) -> None:
        super().__init__()
        self.model, self.block_size = model, block_size

    def forward(self, idx: Tensor) -> Tensor:
        """(B, T) -> (B, T, V)."""
        logits: Tensor = self.model(idx, idx.contiguous())[0]
        return logits
