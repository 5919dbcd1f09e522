"""Checkpoints and run folders: written so that a crash loses nothing, verified whenever they are read."""

from gpt.checkpoint.folder import Checkpoint, read_checkpoint, verify_checkpoint, write_checkpoint
from gpt.checkpoint.loading import Loaded, build_model, format_of, load_trained, load_weights, weights_of
from gpt.checkpoint.runs import RunFolder, find_checkpoint

__all__ = [
    "Checkpoint",
    "Loaded",
    "RunFolder",
    "build_model",
    "find_checkpoint",
    "format_of",
    "load_trained",
    "load_weights",
    "read_checkpoint",
    "verify_checkpoint",
    "weights_of",
    "write_checkpoint",
]
