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
from gpt.data.dataset import Dataset
from gpt.system.errors import DataError, GPTError

OUTPUT_FOLDER = "out-shakespeare-char"
"""Folder of the run, which nanoGPT's configuration names."""
COMPILED_PREFIX = "_orig_mod."
"""Prefix that torch.compile adds to the name of every weight, and that nanoGPT saves."""


def import_nanogpt(checkout: Path) -> Any:
    """Import model.py of a checkout, which is no package, under a name that nothing else has."""
    spec = importlib.util.spec_from_file_location("nanogpt_model", checkout / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build_nanogpt(checkout: Path, shape: dict[str, Any]) -> Any:
    """Build nanoGPT's model from the arguments of its GPTConfig."""
    module = import_nanogpt(checkout)
    # it prints its number of parameters, and standard output is for JSON
    with contextlib.redirect_stdout(sys.stderr):
        return module.GPT(module.GPTConfig(**shape))


def prepare_nanogpt(checkout: Path, dataset: Dataset, folder: Path) -> Path:
    """Copy a checkout into a folder, and run its prepare.py there on our text; return the copy.

    Raises:
        GPTError: its prepare.py fails, or does not encode and split the text as this package does.
    """
    copy = folder / "nanogpt"
    shutil.copytree(checkout, copy, ignore=shutil.ignore_patterns(".git", "__pycache__"))
    data = copy / "data" / "shakespeare_char"
    splits = {"train": dataset.train, "val": dataset.val}
    text = "".join(dataset.tokenizer.decode(np.asarray(split)) for split in splits.values())
    (data / "input.txt").write_text(text, encoding="utf-8")
    time_process([sys.executable, "prepare.py"], folder / "caches", data)
    for name, split in splits.items():
        theirs = np.fromfile(data / f"{name}.bin", dtype=np.uint16)
        if not np.array_equal(theirs, split):
            needs = "both need data.tokenizer=char, data.val_fraction=0.1"
            raise DataError(f"nanoGPT's {name}.bin has other tokens; {needs}")
    return copy


def load_nanogpt(folder: Path) -> "AllLogits":
    """Load the checkpoint in a copy, the best by nanoGPT's own estimate.

    Raise GPTError if there is none.
    """
    path = folder / OUTPUT_FOLDER / "ckpt.pt"
    if not path.is_file():
        reason = "nanoGPT left no checkpoint; it writes one every 250 steps"
        raise GPTError(f"{reason}, so --peer-steps has to be higher")
    saved = torch.load(path, map_location="cpu", weights_only=True)
    model = build_nanogpt(folder, saved["model_args"])
    weights = saved["model"]
    model.load_state_dict({name.removeprefix(COMPILED_PREFIX): weights[name] for name in weights})
    return AllLogits(model, saved["model_args"]["block_size"])


class AllLogits(nn.Module):
    """Makes nanoGPT return the logits of all positions, which it does only where it is given
    targets.
    """

    def __init__(self, model: nn.Module, block_size: int) -> None:
        super().__init__()
        self.model = model
        self.block_size = block_size

    def forward(self, idx: Tensor) -> Tensor:
        """Map ids (B, T) to logits (B, T, V)."""
        logits: Tensor = self.model(idx, idx.contiguous())[0]
        return logits
