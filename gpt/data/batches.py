"""Batches of random windows of a split, with a random generator of their own."""

import mmap
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpt.data.dataset import Tokens

KEEP_RESIDENT = 16 << 20
"""Size in bytes up to which a token file stays in memory; the pages of a larger one are released after reading."""


def release_pages(tokens: Tokens) -> None:
    """Release the resident pages of a large memory-mapped file, which otherwise grow with every read."""
    mapping = getattr(tokens, "_mmap", None)
    if isinstance(mapping, mmap.mmap) and len(mapping) > KEEP_RESIDENT and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)


class BatchSampler:
    """Sample windows of `block_size + 1` tokens at uniformly random positions.

    The positions are a function of the seed and the number of batches sampled so far; a saved state continues
    the same sequence of batches.

    Args:
        tokens: a split, in memory or memory-mapped.
        block_size: T, tokens per window.
        seed: seed of the sampler's own generator.
    """

    def __init__(self, tokens: Tokens, block_size: int, seed: int) -> None:
        assert len(tokens) > block_size, "checked by Dataset.check_length"
        self.tokens = tokens
        self.offsets = np.arange(block_size + 1)
        self.generator = torch.Generator().manual_seed(seed)
        self.starts = torch.empty(0, dtype=torch.long)
        """Positions of the first tokens of the last batch's windows, (B,)."""

    def get_batch(self, batch_size: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets, each (B, T) int64; the target of a position is the token after it."""
        starts = torch.randint(len(self.tokens) - len(self.offsets) + 1, (batch_size, 1), generator=self.generator)
        self.starts = starts.flatten()
        windows = torch.from_numpy(self.tokens[starts.numpy() + self.offsets].astype(np.int64))
        release_pages(self.tokens)
        return windows[:, :-1], windows[:, 1:]

    def state_dict(self) -> dict[str, Any]:
        """Return the generator's state."""
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from where `state_dict` was called."""
        self.generator.set_state(state["generator"])
