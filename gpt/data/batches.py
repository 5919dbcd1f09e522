"""Windows of a split, chosen at random or in a shuffled order, and the micro-batches of a step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpt.data.tokens import Tokens, release_pages

NUM_SAVED_BLOCKS = 8
"""Number of an epoch's first blocks that a checkpoint keeps, to notice another order on a resume.

Of a thousand blocks, the first eight of two random orders agree with a probability of 10^-24.
"""


@dataclass(frozen=True, repr=False)
class StepBatch:
    """A micro-batch of a training step, which stays on the CPU until the objective moves it.

    Attributes:
        inputs: ids, (B, T) int64.
        targets: the id after each input, (B, T) int64, or `IGNORE`, which the loss leaves out.
        fields: further tensors that the objective reads, by name, (B, T, ...) each.
    """

    inputs: Tensor
    targets: Tensor
    fields: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def tensors(self) -> list[Tensor]:
        return [self.inputs, self.targets, *self.fields.values()]

    def map(self, change: Callable[[Tensor], Tensor]) -> "StepBatch":
        """Return a batch of the results of `change` for each tensor."""
        fields = {name: change(tensor) for name, tensor in self.fields.items()}
        return StepBatch(change(self.inputs), change(self.targets), fields)


Field = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Computes a field of a batch, (B, T, ...), from its inputs and targets, (B, T), and the positions
(B,) at which its windows begin in the training split. A window of items begins at its first item,
and is packed from several."""


def read_windows(tokens: Tokens, starts: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """Return the windows that begin at `starts`, (B,), as inputs and targets, each (B, T) int64."""
    positions = starts.numpy()[:, None] + np.arange(block_size + 1)  # (B, T + 1)
    windows = torch.from_numpy(tokens[positions].astype(np.int64))
    release_pages(tokens)
    return windows[:, :-1], windows[:, 1:]


class Sampler:
    """Chooses windows of `block_size + 1` tokens, which may lie anywhere in a split.

    After its state is saved and loaded, a sampler continues with the same batches.

    Attributes:
        starts: positions of the first tokens of the windows of the last batch, (B,) int64, or
            empty before the first batch.
    """

    def __init__(self, tokens: Tokens, block_size: int) -> None:
        self.tokens = tokens
        self.block_size = block_size
        self.starts = torch.empty(0, dtype=torch.long)

    def get_batch(self, batch_size: int, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Choose a batch and read it; return inputs and targets, each (R, T) int64.

        Args:
            batch_size: number B of windows to choose.
            rows: indices of the R windows that this process reads; None means that it reads all B.
        """
        # Each process chooses all windows of the batch and reads its own, so that the generators of
        # all processes stay in the same state.
        self.starts = self._choose(batch_size)  # kept for fields that depend on the position
        starts = self.starts if rows is None else self.starts[rows]
        return read_windows(self.tokens, starts, self.block_size)

    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was called, or raise ValueError if that is impossible."""
        raise NotImplementedError

    def _choose(self, batch_size: int) -> Tensor:
        """Return where the windows of the next batch begin, (B,) int64."""
        raise NotImplementedError


class BatchSampler(Sampler):
    """Samples windows at uniformly random positions, from a generator of its own."""

    def __init__(self, tokens: Tokens, block_size: int, seed: int) -> None:
        assert len(tokens) > block_size, "checked by Dataset.check_length"
        super().__init__(tokens, block_size)
        self.generator = torch.Generator().manual_seed(seed)

    def _choose(self, batch_size: int) -> Tensor:
        num_starts = len(self.tokens) - self.block_size
        return torch.randint(num_starts, (batch_size,), generator=self.generator)

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if set(state) != {"generator"}:
            raise ValueError("it was saved with a different data.order")
        self.generator.set_state(state["generator"])


class SeveralTextsSampler(BatchSampler):
    """Samples a text with a probability by its length, and a window at a random position in it.

    Args:
        text_ranges: where each text begins and ends in `tokens`, (S, 2) int64.
    """

    def __init__(
        self, tokens: Tokens, block_size: int, seed: int, text_ranges: NDArray[np.int64]
    ) -> None:
        super().__init__(tokens, block_size, seed)
        self._ranges = torch.from_numpy(text_ranges)
        self._lengths = self._ranges.diff(dim=1).squeeze(1).double()  # (S,)

    def _choose(self, batch_size: int) -> Tensor:
        texts = torch.multinomial(
            self._lengths, batch_size, replacement=True, generator=self.generator
        )
        begin, end = self._ranges[texts].unbind(1)  # (B,) each
        # `torch.randint` takes one range for all rows, so that fractions of each range are drawn.
        fractions = torch.rand(batch_size, dtype=torch.float64, generator=self.generator)
        num_starts = end - begin - self.block_size
        return begin + (fractions * num_starts).long()


class ShuffledSampler(Sampler):
    """Samples windows so that each block of an epoch is an input exactly once.

    Each epoch draws a random offset below `block_size`, from which on it cuts the split into
    adjacent blocks of `block_size` inputs, and reads them in a random order. The tokens left out at
    both ends are fewer than two blocks. A batch may end one epoch and begin the next. The order
    depends only on the seed and the number of the epoch; it takes 8 bytes of memory per block.

    Attributes:
        epoch: number of the epoch that the next window is from.
        position: number of blocks of that epoch that were used.
    """

    def __init__(self, tokens: Tokens, block_size: int, seed: int) -> None:
        assert len(tokens) > block_size, "checked by Dataset.check_length"
        super().__init__(tokens, block_size)
        self.seed = seed
        self._begin_epoch(0)

    def _choose(self, batch_size: int) -> Tensor:
        """Return where the next blocks begin, (B,), and advance the position."""
        parts: list[Tensor] = []
        num_missing = batch_size
        # If an epoch has too few blocks left, the batch goes on with those of the next epoch.
        while num_missing > 0:
            blocks = self._order[self.position : self.position + num_missing]
            parts.append(self._offset + self.block_size * blocks)
            self.position += len(blocks)
            num_missing -= len(blocks)
            if self.position == len(self._order):
                self._begin_epoch(self.epoch + 1)
        return torch.cat(parts)

    def state_dict(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "epoch": self.epoch,
            "position": self.position,
            "first_blocks": self._first_blocks(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue an epoch, or raise ValueError if its order cannot be drawn again."""
        if "epoch" not in state:
            raise ValueError("it was saved with a different data.order")
        self.seed = int(state["seed"])
        self._begin_epoch(int(state["epoch"]))
        # The order is drawn anew from the seed. Another version of torch may draw another order.
        # Earlier versions of this package did too, and saved no blocks.
        if state.get("first_blocks") != self._first_blocks():
            raise ValueError("another version of gpt or torch shuffled its epochs in another order")
        position = int(state["position"])
        num_blocks = len(self._order)
        if not 0 <= position < num_blocks:
            raise ValueError(f"its position is {position}, and an epoch has {num_blocks} blocks")
        self.position = position

    def _first_blocks(self) -> list[int]:
        return self._order[:NUM_SAVED_BLOCKS].tolist()

    def _begin_epoch(self, epoch: int) -> None:
        """Draw the offset and the order of an epoch, from a generator for this epoch only."""
        # Seed and epoch are hashed: with their sum, epoch 1 of seed 0 would be epoch 0 of seed 1.
        epoch_seed = int(np.random.SeedSequence([self.seed, epoch]).generate_state(1)[0])
        generator = torch.Generator().manual_seed(epoch_seed)
        # After the offset there must be at least one block and the target of its last input.
        num_offsets = min(self.block_size, len(self.tokens) - self.block_size)
        self._offset = int(torch.randint(num_offsets, (), generator=generator))
        num_blocks = (len(self.tokens) - 1 - self._offset) // self.block_size
        # The order of the last epoch is freed first: two orders would take twice the memory.
        self._order = torch.empty(0, dtype=torch.long)
        self._order = torch.randperm(num_blocks, generator=generator)
        self.epoch = epoch
        self.position = 0


def build_sampler(
    order: str,
    tokens: Tokens,
    block_size: int,
    seed: int,
    text_ranges: NDArray[np.int64] | None = None,
) -> Sampler:
    """Return the sampler for a value of `data.order`.

    Args:
        order: random or shuffled; several texts are always read in random order.
        text_ranges: where each of several texts begins and ends; None for one text.
    """
    if text_ranges is not None:
        return SeveralTextsSampler(tokens, block_size, seed, text_ranges)
    if order == "shuffled":
        return ShuffledSampler(tokens, block_size, seed)
    return BatchSampler(tokens, block_size, seed)


@dataclass(repr=False)
class MicroBatches:
    """Reads one batch for each step, and splits it into micro-batches.

    The batch does not depend on how it is split, so that accumulation does not change the data.

    Attributes:
        sequences: number of windows of a step, over all processes.
        size: number of windows of a micro-batch.
        rows: indices of the windows of a step that this process reads, (R,) int64, or None for all.
        fields: functions that compute the further fields of a batch, by the names of the fields.
    """

    sampler: Sampler
    sequences: int
    size: int
    rows: Tensor | None = None
    fields: Mapping[str, Field] = field(default_factory=dict)

    def example(self) -> StepBatch:
        """Return a micro-batch of zeros in the shapes of full windows."""
        ids = torch.zeros(self.size, self.sampler.block_size, dtype=torch.int64)  # (B, T)
        return self._with_fields(ids, ids, torch.zeros(self.size, dtype=torch.int64))

    def next(self, length: int) -> list[StepBatch]:
        """Read the micro-batches of a step; each tensor is (B T / length, length, ...).

        Args:
            length: tokens of a sequence, into which the windows of T tokens are cut.
        """
        # `get_batch` chooses the windows, so `starts` is read only after it.
        inputs, targets = self.sampler.get_batch(self.sequences, self.rows)  # (R, T) each
        starts = self.sampler.starts if self.rows is None else self.sampler.starts[self.rows]
        batches: list[StepBatch] = []
        for first in range(0, len(inputs), self.size):
            part = slice(first, first + self.size)
            # Fields are computed before the windows are cut: a field such as the predictions of a
            # teacher model may need whole windows.
            batch = self._with_fields(inputs[part], targets[part], starts[part])
            batches.append(batch.map(partial(_cut, length=length)))
        return batches

    def _with_fields(self, inputs: Tensor, targets: Tensor, starts: Tensor) -> StepBatch:
        fields = {name: compute(inputs, targets, starts) for name, compute in self.fields.items()}
        return StepBatch(inputs, targets, fields)


def _cut(tensor: Tensor, length: int) -> Tensor:
    """Cut windows (B, T, ...) into sequences (B T / length, length, ...)."""
    return tensor.reshape(-1, length, *tensor.shape[2:])
