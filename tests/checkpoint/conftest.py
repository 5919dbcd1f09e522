"""A small checkpoint with everything in it that a real one has."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gpt.checkpoint import Checkpoint, weights_of, write_checkpoint
from gpt.config import Config
from gpt.data.tokenizers import CharTokenizer
from gpt.model import GPT

CHARS = "\n abcdefgh"

MakeCheckpoint = Callable[..., Checkpoint]


@pytest.fixture(scope="session")
def make_checkpoint() -> MakeCheckpoint:
    """A function of the step, the validation loss and keys of `model`.

    Another step gives other weights.
    """

    def make(step: int = 5, val_loss: float | None = 1.5, **model: object) -> Checkpoint:
        sizes = {
            "n_layer": 1,
            "n_head": 2,
            "n_embd": 8,
            "block_size": 8,
            "vocab_size": len(CHARS),
            **model,
        }
        config = Config.model_validate({"model": sizes})
        torch.manual_seed(step)
        gpt = GPT(config.model)
        training = {
            "optimizer": {
                "state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.randn(4)}},
                "lr": 1e-3,
            },
            "sampler": {"generator": torch.Generator().manual_seed(step).get_state()},
            "generators": [{"cpu": torch.get_rng_state(), "cuda": []}],
        }
        return Checkpoint(
            weights_of(gpt),
            training,
            {"step": step, "val_loss": val_loss},
            config,
            CharTokenizer(CHARS),
        )

    return make


@pytest.fixture
def checkpoint(make_checkpoint: MakeCheckpoint) -> Checkpoint:
    """One of them."""
    return make_checkpoint()


@pytest.fixture
def folder(tmp_path: Path, checkpoint: Checkpoint) -> Path:
    """A checkpoint that was written."""
    path = tmp_path / "step-000005"
    write_checkpoint(path, checkpoint)
    return path
