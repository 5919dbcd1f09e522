"""Three protocols to read a text in windows; their losses must not be mixed.

`full` reads the text once in order, in blocks of `block_size`: the figure to quote. `sliding`
overlaps the windows, so that every token has a long context. `random` is nanoGPT's estimate: batches
of random crops, noisy.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from gpt.data.batches import BatchSampler, release_pages
from gpt.data.dataset import Tokens
from gpt.evaluation.loss import IGNORE, Batch


def full_batches(tokens: Tokens, block_size: int, batch_size: int) -> Iterator[Batch]:
    """Yield the whole text in order, each token but the first predicted once, in blocks side by side."""
    return sliding_batches(tokens, block_size, batch_size, stride=block_size)


def sliding_batches(tokens: Tokens, block_size: int, batch_size: int, stride: int) -> Iterator[Batch]:
    """Yield windows `stride` apart; each predicts only the tokens that the one before did not reach."""
    last = len(tokens) - 1  # the last token is only a target
    starts = range(0, max(1, last - block_size + stride), stride)
    whole = max(0, (last - block_size) // stride + 1)  # windows that do not reach past the end
    for i in range(0, whole, batch_size):
        yield _windows(tokens, starts[i : min(i + batch_size, whole)], block_size, stride)
        release_pages(tokens)
    for start in starts[whole:]:
        yield _windows(tokens, [start], last - start, stride - (start + block_size - last))


def random_batches(tokens: Tokens, block_size: int, batch_size: int, batches: int, seed: int) -> Iterator[Batch]:
    """Yield random crops, from a generator of their own."""
    sampler = BatchSampler(tokens, block_size, seed)
    for _ in range(batches):
        yield sampler.get_batch(batch_size)


def _windows(tokens: Tokens, starts: Sequence[int], length: int, fresh: int) -> Batch:
    """Return windows of `length`, of which all but the first of the text predict their last `fresh` tokens only."""
    indices = np.array(starts)[:, None] + np.arange(length + 1)
    windows: Tensor = torch.from_numpy(tokens[indices].astype(np.int64))
    targets = windows[:, 1:].clone()
    for row, start in enumerate(starts):
        if start > 0:
            targets[row, : length - fresh] = IGNORE
    return windows[:, :-1], targets
