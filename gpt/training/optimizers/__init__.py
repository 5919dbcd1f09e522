"""Optimizers: AdamW for everything, or Muon for the matrices of the blocks beside it."""

from gpt.training.optimizers.build import build_optimizer
from gpt.training.optimizers.together import Together

__all__ = ["Together", "build_optimizer"]
