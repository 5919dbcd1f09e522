"""Two protocols to evaluate a text in windows; their losses are not comparable.

`full` reads the text once in order, in blocks of `block_size`: the loss to report. `sliding` overlaps the
windows, so that every token has a long context.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from gpt.data.tokens import Tokens, release_pages
from gpt.training.loss import IGNORE, Batch


def full_batches(tokens: Tokens, block_size: int, batch_size: int) -> Iterator[Batch]:
    """Yield the text in adjacent blocks, in order; each token but the first is predicted once."""
    return sliding_batches(tokens, block_size, batch_size, stride=block_size)


def sliding_batches(tokens: Tokens, block_size: int, batch_size: int, stride: int) -> Iterator[Batch]:
    """Yield windows `stride` apart; each predicts only the tokens after the end of the previous one."""
    # the last token is only a target
    last = len(tokens) - 1
    starts = range(0, max(1, last - block_size + stride), stride)
    # the windows that do not reach past the end are computed together, as batches of one shape
    whole = max(0, (last - block_size) // stride + 1)
    for i in range(0, whole, batch_size):
        yield _windows(tokens, starts[i : min(i + batch_size, whole)], block_size, stride)
        release_pages(tokens)
    for start in starts[whole:]:
        yield _windows(tokens, [start], last - start, stride - (start + block_size - last))


def _windows(tokens: Tokens, starts: Sequence[int], length: int, fresh: int) -> Batch:
    """Return windows of `length`; all but the first one of the text predict only their last `fresh` tokens."""
    indices = np.array(starts)[:, None] + np.arange(length + 1)
    windows: Tensor = torch.from_numpy(tokens[indices].astype(np.int64))
    targets = windows[:, 1:].clone()
    for index, start in enumerate(starts):
        if start > 0:
            targets[index, : length - fresh] = IGNORE
    return windows[:, :-1], targets
