"""Batches of whole items: packed into windows for training, one in each row for evaluation."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpt.data.batches import Sampler
from gpt.data.items import ItemIds, item_spans
from gpt.data.tokens import IGNORE, Tokens, release_pages

LENGTH_MULTIPLE = 8
"""Rows of an evaluation are padded to a multiple of this, so that batches have few shapes."""


class ItemSampler(Sampler):
    """Samples windows of whole items, each item of a split once in an epoch.

    The inputs of a window begin with the token that ends an item; as many items as fit follow, in
    the shuffled order of the epoch. An item that is longer than a window is cut into pieces, which
    are then shuffled like items. The order depends only on the seed and the number of the epoch.

    Attributes:
        epoch: number of the epoch that the next window is from.
        position: number of windows of that epoch that were used.
    """

    def __init__(self, tokens: Tokens, block_size: int, seed: int, ids: ItemIds) -> None:
        super().__init__(tokens, block_size)
        self.seed = seed
        self.ids = ids
        self._spans = _fit_spans(item_spans(tokens, ids.end), block_size, ids)  # (N, 2)
        self._begin_epoch(0)

    def get_batch(self, batch_size: int, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Choose windows of items and read them; otherwise as `Sampler.get_batch`."""
        # Each process chooses all windows of the batch and reads its own, so that all processes are
        # at the same position of the epoch.
        windows = self._choose_windows(batch_size)
        # A window starts where its first item begins.
        self.starts = torch.tensor([int(spans[0, 0]) for spans in windows])
        if rows is not None:
            windows = [windows[int(row)] for row in rows]
        inputs, targets = _padded(self.tokens, windows, self.block_size, self.ids)
        release_pages(self.tokens)
        return inputs, targets

    def state_dict(self) -> dict[str, Any]:
        return {"seed": self.seed, "item_epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue an epoch at the next window, or raise ValueError if that is impossible."""
        # Samplers of running text do not save this key.
        if "item_epoch" not in state:
            raise ValueError("it was saved with a different data.items")
        self.seed = int(state["seed"])
        self._begin_epoch(int(state["item_epoch"]))
        position = int(state["position"])
        if not 0 <= position < len(self._windows):
            raise ValueError(
                f"its position is {position}, and an epoch has {len(self._windows)} windows"
            )
        self.position = position

    def _choose_windows(self, batch_size: int) -> list[NDArray[np.int64]]:
        """Return the next windows, each as the spans of its items, and advance the position."""
        chosen: list[NDArray[np.int64]] = []
        while len(chosen) < batch_size:
            window = self._windows[self.position]
            chosen.append(self._shuffled[window])  # (number of items, 2)
            self.position += 1
            if self.position == len(self._windows):
                self._begin_epoch(self.epoch + 1)
        return chosen

    def _begin_epoch(self, epoch: int) -> None:
        """Shuffle the items, and fill windows with them in that order."""
        # Seed and epoch are hashed: with their sum, epoch 1 of seed 0 would be epoch 0 of seed 1.
        epoch_seed = np.random.SeedSequence([self.seed, epoch])
        generator = np.random.Generator(np.random.PCG64(epoch_seed))
        self._shuffled = self._spans[generator.permutation(len(self._spans))]  # (N, 2)
        lengths = np.diff(self._shuffled, axis=1).squeeze(1)  # (N,)
        self._windows = _pack(lengths, self.block_size)  # slices of the shuffled items
        self.epoch = epoch
        self.position = 0


def _fit_spans(spans: NDArray[np.int64], block_size: int, ids: ItemIds) -> NDArray[np.int64]:
    """Return spans (N, 2), none of which is longer than a window.

    A long question with its answer loses its beginning; other long items are cut into pieces.
    """
    if len(spans) == 0 or np.diff(spans, axis=1).max() <= block_size:
        return spans  # the usual case, in which no item is too long
    if ids.answer is not None:
        # The end is kept, since the loss counts only the answer.
        begins = np.maximum(spans[:, 0], spans[:, 1] - block_size)
        return np.stack([begins, spans[:, 1]], axis=1)
    pieces: list[tuple[int, int]] = []
    for span_begin, span_end in spans.tolist():
        for begin in range(span_begin, span_end, block_size):
            pieces.append((begin, min(begin + block_size, span_end)))
    return np.array(pieces, dtype=np.int64)


def _pack(lengths: NDArray[np.int64], block_size: int) -> list[slice]:
    """Fill windows with items in order; return the slice of the items that each window holds.

    A window holds as many items as fit into its `block_size` targets.

    Args:
        lengths: tokens of each item, (N,), in order; none is longer than a window.
    """
    ends = np.cumsum(lengths)
    windows: list[slice] = []
    first = 0
    while first < len(lengths):
        num_tokens_before = int(ends[first - 1]) if first > 0 else 0
        # The slice ends before the first item whose end lies beyond the window.
        stop = int(np.searchsorted(ends, num_tokens_before + block_size, side="right"))
        windows.append(slice(first, stop))
        first = stop
    return windows


def item_batches(
    tokens: Tokens, block_size: int, batch_size: int, ids: ItemIds
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of inputs and targets for evaluation, (B, T) each, with one item in each row.

    So the tokens of an item are predicted only from those before them in the same item. Items are
    sorted by length, so that the rows of a batch need little padding.
    """
    spans = _fit_spans(item_spans(tokens, ids.end), block_size, ids)  # (N, 2)
    lengths = np.diff(spans, axis=1).squeeze(1)
    by_length = spans[np.argsort(lengths, kind="stable")]
    for first in range(0, len(by_length), batch_size):
        rows = by_length[first : first + batch_size]
        longest = int((rows[-1, 1] - rows[-1, 0]).item())  # rows are sorted by length
        padded_length = math.ceil(longest / LENGTH_MULTIPLE) * LENGTH_MULTIPLE
        # `_padded` takes the spans of several items for each row, but here a row is one item.
        windows = [row[np.newaxis] for row in rows]
        yield _padded(tokens, windows, min(padded_length, block_size), ids)
        release_pages(tokens)


def _padded(
    tokens: Tokens, windows: list[NDArray[np.int64]], length: int, ids: ItemIds
) -> tuple[Tensor, Tensor]:
    """Return windows as inputs and targets, each (B, length) int64, padded at the end.

    Args:
        windows: the spans of the items of each window, (number of items, 2).
    """
    inputs = np.full((len(windows), length), ids.end, dtype=np.int64)
    targets = np.full((len(windows), length), IGNORE, dtype=np.int64)
    for row, spans in enumerate(windows):
        # Converted to int64, since the unsigned types of token files cannot hold IGNORE, -100.
        items = np.concatenate([tokens[begin:end] for begin, end in spans]).astype(np.int64)
        size = len(items)
        # The first input stays `ids.end`, as if another item ended before the window. The target of
        # each input is the token after it.
        inputs[row, 1:size] = items[:-1]
        # If items have answers, the loss counts only the tokens of answers, and not of questions.
        is_counted = ids.counted(items)  # (size,)
        targets[row, :size] = np.where(is_counted, items, IGNORE)
    return torch.from_numpy(inputs), torch.from_numpy(targets)
