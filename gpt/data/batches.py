"""Batches of windows of a split, random ones by default, from a generator of their own, and micro-batches of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpt.data.dataset import Mixture
from gpt.data.tokens import Tokens, release_pages

ROUNDS = 8
"""Rounds of the Feistel network, each with a key."""
Words = NDArray[np.uint64]


def read_windows(tokens: Tokens, starts: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """Return the windows that begin at `starts`, (B,), as inputs and targets, each (B, T) int64."""
    windows = torch.from_numpy(tokens[starts.numpy()[:, None] + np.arange(block_size + 1)].astype(np.int64))
    release_pages(tokens)
    return windows[:, :-1], windows[:, 1:]


class Sampler:
    """Chooses windows of `block_size + 1` tokens of a split; a saved state continues the same sequence of batches.

    After a batch `starts` has the positions of its windows' first tokens, (B,) int64.
    """

    def __init__(self, tokens: Tokens, block_size: int) -> None:
        assert len(tokens) > block_size, "checked by Dataset.check_length"
        self.tokens, self.block_size = tokens, block_size
        self.starts = torch.empty(0, dtype=torch.long)

    def get_batch(self, batch_size: int, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return inputs and targets, each (B, T) int64, of the windows that `rows` has the indices of; None: of all."""
        self.starts = self._choose(batch_size)
        return read_windows(self.tokens, self.starts if rows is None else self.starts[rows], self.block_size)

    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from where `state_dict` was called; raise ValueError if that was in another order or split."""
        raise NotImplementedError

    def _choose(self, batch_size: int) -> Tensor:
        raise NotImplementedError


class BatchSampler(Sampler):
    """Samples windows at uniformly random positions, from a generator of its own."""

    def __init__(self, tokens: Tokens, block_size: int, seed: int) -> None:
        super().__init__(tokens, block_size)
        self.generator = torch.Generator().manual_seed(seed)

    def _choose(self, batch_size: int) -> Tensor:
        return torch.randint(len(self.tokens) - self.block_size, (batch_size,), generator=self.generator)

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if set(state) != {"generator"}:
            raise ValueError("its batches had another data.order")
        self.generator.set_state(state["generator"])


class MixtureSampler(BatchSampler):
    """Samples a text by its weight, then a window inside it at a uniformly random position."""

    def __init__(self, tokens: Tokens, block_size: int, seed: int, mixture: Mixture) -> None:
        super().__init__(tokens, block_size, seed)
        self._weights, self._ranges = torch.from_numpy(mixture.weights), torch.from_numpy(mixture.ranges)

    def _choose(self, batch_size: int) -> Tensor:
        text = torch.multinomial(self._weights, batch_size, replacement=True, generator=self.generator)
        begin, end = self._ranges[text].unbind(1)
        places = torch.rand(batch_size, dtype=torch.float64, generator=self.generator)
        return begin + (places * (end - begin - self.block_size)).long()


class ShuffledSampler(Sampler):
    """Samples windows so that each block of an epoch is an input exactly once.

    Each epoch cuts the split into adjacent blocks of `block_size` inputs, from an offset of its own below
    `block_size` on, and takes them in an order of its own; what is left at both ends is less than two blocks. A
    batch may end one epoch and begin the next. The order is computed, not stored: memory does not grow with the split.
    """

    def __init__(self, tokens: Tokens, block_size: int, seed: int) -> None:
        super().__init__(tokens, block_size)
        self.seed = seed
        self._begin_epoch(0)

    def _choose(self, batch_size: int) -> Tensor:
        starts: list[NDArray[np.int64]] = []
        while batch_size > 0:
            count = min(batch_size, self.blocks - self.position)
            places = np.arange(self.position, self.position + count, dtype=np.uint64)
            starts.append(self._offset + self.block_size * permute(places, self.blocks, self._keys).astype(np.int64))
            self.position += count
            batch_size -= count
            if self.position == self.blocks:
                self._begin_epoch(self.epoch + 1)
        return torch.from_numpy(np.concatenate(starts))

    def state_dict(self) -> dict[str, Any]:
        return {"seed": self.seed, "epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if set(state) != {"seed", "epoch", "position"}:
            raise ValueError("its batches had another data.order")
        self.seed = int(state["seed"])
        self._begin_epoch(int(state["epoch"]))
        if not 0 <= state["position"] < self.blocks:
            raise ValueError(f"its position is {state['position']}, and an epoch has {self.blocks} blocks")
        self.position = int(state["position"])

    def _begin_epoch(self, epoch: int) -> None:
        words = np.random.SeedSequence([self.seed, epoch]).generate_state(ROUNDS + 1, np.uint64)
        self.epoch, self.position = epoch, 0
        self._keys = words[1:].astype(np.uint64)
        self._offset = int(words[0]) % min(self.block_size, len(self.tokens) - self.block_size)
        self.blocks: int = (len(self.tokens) - 1 - self._offset) // self.block_size


def permute(places: Words, size: int, keys: Words) -> Words:
    """Return the elements at some places of a pseudorandom permutation of 0, 1, ..., size - 1.

    A Feistel network (Luby and Rackoff 1988) permutes the numbers below a power of four; where it leads outside the
    range, it is applied again until it leads back (cycle walking, Black and Rogaway 2002): on average, at most four
    times.

    Args:
        places: (N,), each below `size`.
        keys: one for each round; they choose the permutation.
    """
    half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    elements = places
    outside = np.arange(len(places))
    while len(outside):
        elements = elements.copy()
        elements[outside] = _feistel(elements[outside], half, keys)
        outside = outside[elements[outside] >= size]
    return elements


def _feistel(words: Words, half: np.uint64, keys: Words) -> Words:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = words >> half, words & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right + key) & mask)
    return (left << half) | right


def _mixed(words: Words) -> Words:
    """Return well-mixed words: the finalizer of SplitMix64 (Steele, Lea and Flood 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def build_sampler(order: str, tokens: Tokens, block_size: int, seed: int, mixture: Mixture | None = None) -> Sampler:
    if mixture is not None:
        return MixtureSampler(tokens, block_size, seed, mixture)
    return (BatchSampler if order == "random" else ShuffledSampler)(tokens, block_size, seed)


@dataclass(repr=False)
class MicroBatches:
    """Reads the micro-batches of each step: one large batch, split, so that accumulation does not change the data.

    Attributes:
        size: sequences of a micro-batch.
        rows: those of a step that are read, (R,) int64; None: all.
        complete: adds what the objective reads to a micro-batch, whose windows begin at the given positions.
    """

    sampler: Sampler
    sequences: int
    size: int
    rows: Tensor | None = None
    complete: Callable[[tuple[Tensor, Tensor], Tensor], tuple[Tensor, ...]] = lambda batch, starts: batch

    def next(self, length: int) -> list[tuple[Tensor, ...]]:
        """Read the micro-batches of a step: windows, (B, T, ...), cut into sequences, (B T / length, length, ...)."""
        inputs, targets = self.sampler.get_batch(self.sequences, self.rows)
        starts = self.sampler.starts if self.rows is None else self.sampler.starts[self.rows]
        parts = zip(*(torch.split(tensor, self.size) for tensor in (inputs, targets, starts)), strict=True)
        batches = (self.complete((inputs, targets), starts) for inputs, targets, starts in parts)
        return [tuple(each.reshape(-1, length, *each.shape[2:]) for each in batch) for batch in batches]
